"""One page for people: verdict, figures, tables and warnings of a profile, trees and benches, without any request."""
