"""Facts of the stories, as tables: countries, animals, tools, opposites, kinds."""

from __future__ import annotations

from firth.data.stories.word_lists import pairs, phrases, table, words

# country: (capital, its people, its language, relative frequency)
COUNTRIES = table("""France: Paris, French, French, 16; Spain: Madrid, Spanish, Spanish, 3;
    Italy: Rome, Italian, Italian, 3; Germany: Berlin, German, German, 3;
    England: London, English, English, 3; Japan: Tokyo, Japanese, Japanese, 3;
    China: Beijing, Chinese, Chinese, 2; Russia: Moscow, Russian, Russian, 2;
    Greece: Athens, Greek, Greek, 2; Egypt: Cairo, Egyptian, Arabic, 2;
    Portugal: Lisbon, Portuguese, Portuguese, 2; Poland: Warsaw, Polish, Polish, 1;
    Norway: Oslo, Norwegian, Norwegian, 1; Sweden: Stockholm, Swedish, Swedish, 1;
    Finland: Helsinki, Finnish, Finnish, 1; Austria: Vienna, Austrian, German, 1;
    Hungary: Budapest, Hungarian, Hungarian, 1; Turkey: Ankara, Turkish, Turkish, 1;
    Ireland: Dublin, Irish, English, 1; Kenya: Nairobi, Kenyan, Swahili, 2;
    Ghana: Accra, Ghanaian, English, 1; Peru: Lima, Peruvian, Spanish, 1;
    Canada: Ottawa, Canadian, English, 1; Cuba: Havana, Cuban, Spanish, 1;
    Jordan: Amman, Jordanian, Arabic, 1; Denmark: Copenhagen, Danish, Danish, 1""")
# each country as often as its frequency says
WEIGHTED_COUNTRIES = tuple(
    country for country, row in COUNTRIES.items() for _ in range(int(row[3]))
)

# animal: (sound, food, home, young or -)
ANIMALS = table("""dog: bark, bones, kennel, puppy; cat: meow, fish, house, kitten;
    cow: moo, grass, barn, calf; horse: neigh, hay, stable, foal; sheep: bleat, grass, meadow, lamb;
    pig: grunt, potatoes, sty, piglet; duck: quack, bread crumbs, pond, duckling;
    hen: cluck, corn, coop, chick; lion: roar, meat, savanna, cub; wolf: howl, meat, forest, cub;
    mouse: squeak, cheese, hole, -; bee: buzz, nectar, hive, -; frog: croak, flies, pond, tadpole;
    owl: hoot, mice, hollow tree, -; snake: hiss, mice, grass, -; bird: chirp, worms, nest, chick;
    goat: bleat, leaves, mountains, kid; goose: honk, grass, farm, gosling;
    donkey: bray, hay, stable, foal; elephant: trumpet, leaves, savanna, calf;
    crow: caw, seeds, nest, -; lamb: bleat, grass, meadow, -""")
FAR = ("lion", "elephant", "wolf", "snake")  # not heard in a village
MORE_FOOD = pairs("""rabbit: carrots; squirrel: nuts; bear: honey; monkey: bananas; fox: hens;
    panda: bamboo; bat: insects; penguin: fish; seal: fish; giraffe: leaves; camel: hay;
    spider: flies; hedgehog: worms; otter: fish; parrot: seeds; deer: grass""")
MORE_HOMES = pairs("""fish: water; fox: den; squirrel: tree; bear: cave; bat: cave; camel: desert;
    monkey: jungle; penguin: ice; spider: web; whale: sea; shark: sea; rabbit: burrow;
    crocodile: river; parrot: jungle""")
COLOURS_OF = pairs("""grass: green; snow: white; milk: white; coal: black; the sky: blue;
    a lemon: yellow; a ripe banana: yellow; a ripe tomato: red; blood: red; chocolate: brown;
    a carrot: orange; the night: black; a frog: green; a pig: pink; an elephant: grey;
    a crow: black; a swan: white; salt: white; a fire engine: red""")
OPPOSITES = pairs("""hot: cold; big: small; tall: short; old: young; happy: sad; fast: slow;
    day: night; up: down; open: closed; full: empty; light: heavy; dark: bright; wet: dry;
    hard: soft; early: late; rich: poor; strong: weak; clean: dirty; loud: quiet; left: right;
    near: far; sweet: sour; thick: thin; high: low; good: bad; black: white; begin: end; buy: sell;
    remember: forget; win: lose; brave: cowardly; wide: narrow; sharp: blunt; easy: difficult;
    love: hate; inside: outside""")
TOOLS = pairs("""hammer: drive nails; saw: cut wood; needle: sew; spade: dig;
    broom: sweep the floor; pen: write; brush: paint; knife: cut bread; key: open a lock;
    umbrella: stay dry; thermometer: measure heat; ladder: climb up; spoon: eat soup;
    map: find the way; clock: tell the time; lamp: give light; kettle: boil water;
    rake: gather leaves; net: catch fish; telescope: look at the stars; towel: dry oneself;
    compass: find north; camera: take photographs; axe: chop wood; fridge: keep food cold;
    soap: wash one's hands""")
# season: (a sign of it, a month)
SEASONS = table("""spring: the flowers bloom, April; summer: the days are hot, July;
    autumn: the leaves fall, October; winter: the snow falls, January""")
# season: who does what in it
SIGNS = {
    season: tuple(tuple(sign.split(" > ")) for sign in signs)
    for season, signs in table("""
        spring: the flowers > bloom, the trees > turn green, the birds > build nests,
            the snow > begin to melt, the first flowers > open;
        summer: the days > get hot, the children > swim in the lake, the corn > ripen,
            the cows > stay outside, people > sit in the shade;
        autumn: the leaves > fall from the trees, the leaves > turn yellow, the apples > ripen,
            the birds > fly south, the farmers > bring in the potatoes;
        winter: the snow > fall, the lake > freeze, the children > build a snowman,
            snow > lie on the roofs, people > wear gloves""").items()
}
SEVERAL = phrases("""the flowers; the trees; the birds; the first flowers; the days; the children;
    the cows; people; the leaves; the apples; the farmers""")  # in the plural
MONTHS_OF = table("""spring: March, April, May; summer: June, July, August;
    autumn: September, October, November; winter: December, January, February""")
WEATHER_OF = table("""spring: mild, fresh; summer: hot, sunny; autumn: foggy, windy;
    winter: cold, frosty, icy""")
# who drinks: what, and from what
DRINKS = table("""kitten: milk, a bowl, a saucer; cat: milk, a bowl, a saucer; baby: milk, a cup;
    calf: milk, a bucket; puppy: milk, a bowl; grandmother: tea, a cup, a pot; guest: tea, a cup;
    aunt: tea, a cup, a pot; thirsty runner: water, a glass, a bottle; horse: water, a bucket;
    thirsty boy: water, a glass, a cup; thirsty girl: water, a glass, a cup; dog: water, a bowl;
    thirsty man: water, a glass, a bottle; thirsty woman: water, a glass, a bottle""")
# what one does there: a place
PLACES_FOR = pairs("""borrow books: library; see a film: cinema; learn to swim: swimming pool;
    see the lions: zoo; take a train: railway station; put money away: bank; change money: bank;
    fetch money: bank; see a doctor: hospital; learn to read: school; see a play: theatre;
    look at old paintings: museum; post a letter: post office; hear the bells: church;
    see the ships: harbour; catch a plane: airport; eat dinner: restaurant; borrow a book: library;
    bring back a book: library; learn to write: school; see the elephants: zoo;
    visit a sick friend: hospital""")
# how many parts a whole has
PARTS = pairs("""spider: eight legs; dog: four legs; bird: two legs; insect: six legs;
    bicycle: two wheels; triangle: three sides; square: four corners; week: seven days;
    year: twelve months; hand: five fingers""")
KINDS = pairs("""rose: flower; tulip: flower; oak: tree; birch: tree; apple: fruit; pear: fruit;
    carrot: vegetable; onion: vegetable; eagle: bird; sparrow: bird; hammer: tool; saw: tool;
    violin: instrument; flute: instrument; ant: insect; bee: insect; chair: piece of furniture;
    table: piece of furniture; copper: metal; iron: metal; salmon: fish; shark: fish""")
NUMBERS = words("""zero one two three four five six seven eight nine ten eleven twelve thirteen
    fourteen fifteen sixteen seventeen eighteen nineteen twenty""")
COUNTS = pairs("""days are there in a week: seven; months are there in a year: twelve;
    seasons are there in a year: four; legs does a spider have: eight; legs does a dog have: four;
    legs does a bird have: two; legs does an insect have: six; wheels does a bicycle have: two;
    hours are there in half a day: twelve; fingers are there on one hand: five;
    sides does a triangle have: three; corners does a square have: four;
    minutes are there in an hour: sixty; letters are there in the word "cat": three""")
FOOD_OF = {animal: row[1] for animal, row in ANIMALS.items()} | MORE_FOOD
HOME_OF = {animal: row[2] for animal, row in ANIMALS.items()} | MORE_HOMES
