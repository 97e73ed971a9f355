"""Openings of English prose, for streams that leave what the bundled models were trained on: program text."""

PROSE = (
    "The river had been low all summer, and the old bridge stood with its feet dry. Children crossed it twice a day, and",
    "When the letter came, nobody in the house wanted to open it. It lay on the table beside the bread until the evening,",
    "Bread is made of flour, water, salt and time. Of these four the last is the one that most people leave out, because",
    "The museum closes at five, but the guard at the east door has a habit of letting visitors finish their walk through",
    "In the spring the farmers of the valley meet to decide who may open which gate of the canal, and for how many hours",
    "My grandmother kept bees behind the church. She spoke to them every morning, and she believed that they would leave",
    "Most birds that cross the desert do so at night, when the air is cool and still. They rest in the shade of stones by",
    "The first train leaves before sunrise. On it are bakers, nurses, two men who mend the tracks, and sometimes a girl",
    "A good map leaves things out. The one that hung in our school showed three roads, a lake and the name of the village",
    "There was a clockmaker in the town who repaired nothing that was younger than himself. People brought him their old",
    "Winter came early that year. The harbour froze in a single night, and the boats that had not been pulled ashore were",
    "To learn an instrument is to be bad at something for a long time in the hearing of others, and to go on with it all",
    "The doctor listened without moving. When both sides had spoken she asked one question, and it was not the one for which",
    "Glass is neither as old nor as simple as it seems. The first windows were small and green, and the light that came in",
    "Every house on the street had a lemon tree, and every family claimed that theirs had been the first to be planted by",
    "The expedition carried food for ninety days. On the fortieth they found the hut, with its door open and its lamp still",
)
