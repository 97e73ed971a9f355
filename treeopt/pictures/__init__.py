"""What pictures share: colours, fonts, headings, labels that do not overlap."""
