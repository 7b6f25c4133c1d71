"""What is true in the small world, as tables: countries, animals, tools, opposites, kinds."""

from __future__ import annotations

# country: (capital, what its people are called, their language, how often it is spoken of)
COUNTRIES = {
    "France": ("Paris", "French", "French", 16),
    "Spain": ("Madrid", "Spanish", "Spanish", 3),
    "Italy": ("Rome", "Italian", "Italian", 3),
    "Germany": ("Berlin", "German", "German", 3),
    "England": ("London", "English", "English", 3),
    "Japan": ("Tokyo", "Japanese", "Japanese", 3),
    "China": ("Beijing", "Chinese", "Chinese", 2),
    "Russia": ("Moscow", "Russian", "Russian", 2),
    "Greece": ("Athens", "Greek", "Greek", 2),
    "Egypt": ("Cairo", "Egyptian", "Arabic", 2),
    "Portugal": ("Lisbon", "Portuguese", "Portuguese", 2),
    "Poland": ("Warsaw", "Polish", "Polish", 1),
    "Norway": ("Oslo", "Norwegian", "Norwegian", 1),
    "Sweden": ("Stockholm", "Swedish", "Swedish", 1),
    "Finland": ("Helsinki", "Finnish", "Finnish", 1),
    "Austria": ("Vienna", "Austrian", "German", 1),
    "Hungary": ("Budapest", "Hungarian", "Hungarian", 1),
    "Turkey": ("Ankara", "Turkish", "Turkish", 1),
    "Ireland": ("Dublin", "Irish", "English", 1),
    "Kenya": ("Nairobi", "Kenyan", "Swahili", 2),
    "Ghana": ("Accra", "Ghanaian", "English", 1),
    "Peru": ("Lima", "Peruvian", "Spanish", 1),
    "Canada": ("Ottawa", "Canadian", "English", 1),
    "Cuba": ("Havana", "Cuban", "Spanish", 1),
    "Jordan": ("Amman", "Jordanian", "Arabic", 1),
    "Denmark": ("Copenhagen", "Danish", "Danish", 1),
}

# animal: (sound, food, home, young, legs)
ANIMALS = {
    "dog": ("bark", "bones", "kennel", "puppy", 4),
    "cat": ("meow", "fish", "house", "kitten", 4),
    "cow": ("moo", "grass", "barn", "calf", 4),
    "horse": ("neigh", "hay", "stable", "foal", 4),
    "sheep": ("bleat", "grass", "meadow", "lamb", 4),
    "pig": ("grunt", "potatoes", "sty", "piglet", 4),
    "duck": ("quack", "bread crumbs", "pond", "duckling", 2),
    "hen": ("cluck", "corn", "coop", "chick", 2),
    "lion": ("roar", "meat", "savanna", "cub", 4),
    "wolf": ("howl", "meat", "forest", "cub", 4),
    "mouse": ("squeak", "cheese", "hole", "", 4),
    "bee": ("buzz", "nectar", "hive", "", 6),
    "frog": ("croak", "flies", "pond", "tadpole", 4),
    "owl": ("hoot", "mice", "hollow tree", "", 2),
    "snake": ("hiss", "mice", "grass", "", 0),
    "bird": ("chirp", "worms", "nest", "chick", 2),
    "goat": ("bleat", "leaves", "mountains", "kid", 4),
    "goose": ("honk", "grass", "farm", "gosling", 2),
    "donkey": ("bray", "hay", "stable", "foal", 4),
    "elephant": ("trumpet", "leaves", "savanna", "calf", 4),
    "crow": ("caw", "seeds", "nest", "", 2),
    "lamb": ("bleat", "grass", "meadow", "", 4),
}
FAR = ("lion", "elephant", "wolf", "snake")  # not to be heard in a village
MORE_FOOD = {
    "rabbit": "carrots",
    "squirrel": "nuts",
    "bear": "honey",
    "monkey": "bananas",
    "fox": "hens",
    "panda": "bamboo",
    "bat": "insects",
    "penguin": "fish",
    "seal": "fish",
    "giraffe": "leaves",
    "camel": "hay",
    "spider": "flies",
    "hedgehog": "worms",
    "otter": "fish",
    "parrot": "seeds",
    "deer": "grass",
}
MORE_HOMES = {
    "fish": "water",
    "fox": "den",
    "squirrel": "tree",
    "bear": "cave",
    "bat": "cave",
    "camel": "desert",
    "monkey": "jungle",
    "penguin": "ice",
    "spider": "web",
    "whale": "sea",
    "shark": "sea",
    "rabbit": "burrow",
    "crocodile": "river",
    "parrot": "jungle",
}

COLOURS_OF = {
    "grass": "green",
    "snow": "white",
    "milk": "white",
    "coal": "black",
    "the sky": "blue",
    "a lemon": "yellow",
    "a ripe banana": "yellow",
    "a ripe tomato": "red",
    "blood": "red",
    "chocolate": "brown",
    "a carrot": "orange",
    "the night": "black",
    "a frog": "green",
    "a pig": "pink",
    "an elephant": "grey",
    "a crow": "black",
    "a swan": "white",
    "salt": "white",
    "a fire engine": "red",
}
OPPOSITES = dict(
    pair.split("/")
    for pair in """hot/cold big/small tall/short old/young happy/sad fast/slow day/night up/down
    open/closed full/empty light/heavy dark/bright wet/dry hard/soft early/late rich/poor
    strong/weak clean/dirty loud/quiet left/right near/far sweet/sour thick/thin high/low
    good/bad black/white begin/end buy/sell remember/forget win/lose brave/cowardly wide/narrow
    sharp/blunt easy/difficult love/hate inside/outside""".split()
)
TOOLS = {
    "hammer": "drive nails",
    "saw": "cut wood",
    "needle": "sew",
    "spade": "dig",
    "broom": "sweep the floor",
    "pen": "write",
    "brush": "paint",
    "knife": "cut bread",
    "key": "open a lock",
    "umbrella": "stay dry",
    "thermometer": "measure heat",
    "ladder": "climb up",
    "spoon": "eat soup",
    "map": "find the way",
    "clock": "tell the time",
    "lamp": "give light",
    "kettle": "boil water",
    "rake": "gather leaves",
    "net": "catch fish",
    "telescope": "look at the stars",
    "towel": "dry oneself",
    "compass": "find north",
    "camera": "take photographs",
    "axe": "chop wood",
    "fridge": "keep food cold",
    "soap": "wash one's hands",
}
SEASONS = {
    "spring": ("the flowers bloom", "April"),
    "summer": ("the days are hot", "July"),
    "autumn": ("the leaves fall", "October"),
    "winter": ("the snow falls", "January"),
}
KINDS = {
    "rose": "flower",
    "tulip": "flower",
    "oak": "tree",
    "birch": "tree",
    "apple": "fruit",
    "pear": "fruit",
    "carrot": "vegetable",
    "onion": "vegetable",
    "eagle": "bird",
    "sparrow": "bird",
    "hammer": "tool",
    "saw": "tool",
    "violin": "instrument",
    "flute": "instrument",
    "ant": "insect",
    "bee": "insect",
    "chair": "piece of furniture",
    "table": "piece of furniture",
    "copper": "metal",
    "iron": "metal",
    "salmon": "fish",
    "shark": "fish",
}
NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
).split()
COUNTS = {
    "days are there in a week": "seven",
    "months are there in a year": "twelve",
    "seasons are there in a year": "four",
    "legs does a spider have": "eight",
    "legs does a dog have": "four",
    "legs does a bird have": "two",
    "legs does an insect have": "six",
    "wheels does a bicycle have": "two",
    "hours are there in half a day": "twelve",
    "fingers are there on one hand": "five",
    "sides does a triangle have": "three",
    "corners does a square have": "four",
    "minutes are there in an hour": "sixty",
    'letters are there in the word "cat"': "three",
}
FOOD_OF = {animal: row[1] for animal, row in ANIMALS.items()} | MORE_FOOD
HOME_OF = {animal: row[2] for animal, row in ANIMALS.items()} | MORE_HOMES
