"""Word lists of the synthetic documents. Order and length matter: a needle's name is a pair of list positions."""

ADJECTIVES = """
amber azure bronze copper coral crimson emerald golden indigo ivory jade lemon lilac maroon olive orange pearl pink
purple ruby rusty sandy scarlet silver teal violet white yellow ancient bold brave bright calm clever cold crisp
deep distant dusty eager early fancy fierce fuzzy gentle giant hidden humble icy jolly keen lively lonely lucky
mighty misty noble polar proud quiet rapid royal secret silent
""".split()

NOUNS = """
falcon otter badger beaver bison camel cobra condor cougar coyote crane cricket dolphin donkey eagle ferret finch
gecko gopher hamster heron hornet iguana jackal jaguar kitten koala lemur leopard lizard llama lobster magpie marmot
mole moose mouse newt ocelot osprey ostrich panda panther parrot pelican penguin pigeon puffin python rabbit raven
robin salmon seal shark sparrow spider squid stork swan tiger turtle walrus zebra
""".split()

ROLES = """
baker farmer teacher doctor sailor painter writer driver singer gardener pilot nurse lawyer miner dancer hunter
weaver potter tailor plumber carpenter librarian merchant soldier clerk student neighbor visitor stranger child
grandmother uncle cousin captain judge mayor waiter chef guard mechanic engineer scientist musician actor priest
knight shepherd fisherman postman barber
""".split()

MOODS = """
old young tall quiet cheerful tired careful famous friendly nervous patient curious honest sleepy busy hungry
generous stubborn polite clumsy thoughtful weary grumpy modest
""".split()

VERBS = """
carried painted repaired noticed borrowed found moved cleaned sold bought described washed lifted examined wrapped
collected watched ignored admired dropped opened measured counted returned hid polished sketched followed
photographed received delivered traded remembered built fixed pushed pulled touched studied covered
""".split()

OBJECTS = """
basket lantern ladder bicycle letter map clock violin hammer blanket bottle mirror barrel wagon candle painting drum
kettle bucket rope saddle telescope compass notebook umbrella suitcase chair table bench shovel wheel bell coat boot
scarf helmet statue vase carpet piano flute engine pump lamp box trunk crate net fence gate
""".split()

OBJECT_ADJECTIVES = """
heavy broken wooden metal little large empty dusty shiny round narrow old new cheap expensive strange familiar wet
dry faded colorful plain fragile rusted
""".split()

PLACES = """
market harbor station library garden kitchen workshop village square bridge river mountain valley forest castle
tower school hospital theater museum bakery cellar attic stable courtyard orchard meadow lighthouse factory chapel
inn cottage
""".split()

ADVERBS = """
slowly quickly carefully quietly proudly gladly suddenly gently eagerly calmly nervously happily silently bravely
politely patiently
""".split()

TRAVEL_VERBS = "walked traveled returned hurried wandered ran drove sailed climbed marched".split()

SAYING_VERBS = "said explained announced whispered claimed insisted admitted wrote".split()

ITEMS = """
apples pears coins books cards shells stamps marbles pencils stickers cookies eggs balloons buttons beads roses
""".split()

GOODS = "pen cup hat toy book ball cake plant ticket candle".split()

PREPOSITIONS = [
    "near the", "behind the", "inside the", "beside the", "outside the", "across from the", "next to the",
    "in front of the",
]

TIMES = [
    "yesterday", "last week", "early in the morning", "late at night", "after lunch", "before sunrise",
    "during the storm", "in the spring", "at noon", "on a cold evening", "after the meeting", "before dinner",
    "in the middle of winter", "on the first day of autumn", "long ago", "that afternoon", "the next day",
    "when the rain stopped", "while the bells were ringing", "as the sun went down",
]

WEATHER = [
    "The wind was cold", "The sky was clear", "Rain fell on the roof", "Snow covered the road", "The fog was thick",
    "The night was warm", "Clouds gathered in the west", "The streets were empty", "The air smelled of bread",
    "The river was high",
]

REASONS = [
    "because it was useful", "because nobody wanted it", "because the price was fair", "because the door was open",
    "because the road was long", "because it belonged to a friend", "because there was no time",
    "because it looked valuable", "because the light was fading", "because the work was done",
]

PEOPLE = [("Tom", "he"), ("Ben", "he"), ("Max", "he"), ("Sam", "he"), ("Leo", "he"), ("Jack", "he"), ("Omar", "he"),
          ("Paul", "he"), ("Ana", "she"), ("Mia", "she"), ("Eva", "she"), ("Lily", "she"), ("Nora", "she"), ("Ruth", "she"),
          ("Zoe", "she"), ("Kate", "she")]
