"""The words of the stories: names, nouns, adjectives, and what goes with what."""

from __future__ import annotations

from firth.data.stories.word_lists import pairs, phrases, table, words

GIRLS = words("""Anna Mia Lily Emma Clara Nora Ruth Alice Grace Zoe Eva Julia Rosa Maria Lucy Ella
    Hannah Sara Olga Ines Amina Layla Yuki Mei Priya Nadia Greta Freya Rose Daisy Ivy Helen Martha
    Edith Sofia Laura Diana Irene Vera Tessa Paula Molly Jane Kate Ada Florence Fatima Zara Wanda
    Bella""")
BOYS = words("""Ben Tom Max Sam Leo Jack Peter Paul Oscar Hugo Felix Noah Adam David Daniel Simon
    Robin George Henry Arthur Omar Ali Kofi Kenji Wei Ravi Ivan Boris Anton Lars Erik Pablo Diego
    Carlos Marco Jordan Victor Martin Jacob Luke Oliver Harry Edgar Walter Otto Emil Yusuf Samuel
    Tim Fred""")
SURNAMES = words("""Hill Brook Stone Field Wood Carter Mason Fisher Turner Potter Marsh Green Brown
    White Young Parker Bell Moss Lane Ford Webb Reed Hart Snow Winter Bishop Archer Banks Waters
    Price""")
TOWNS = words("""Millbrook Ashford Oakham Redhill Fairview Stonebridge Larkfield Westport Eastwick
    Maplewood Northgate Summerton Foxhollow Brightwater Kingsley Dunmore Elmstead Harrow Seaford
    Thornbury""")
RIVERS = phrases("Silver River; Green River; Long River; Otter Creek; River Ash; River Dunn")
LAKES = phrases("Lake Mora; Swan Lake; Blue Lake; Lake Tarn; Mirror Lake")
STREETS = phrases("""Mill Lane; Station Road; Church Street; Garden Street; Bridge Road;
    King Street; Orchard Lane; Market Street""")
SCHOOLS = phrases("""Hill Street School; Riverside School; Oak Tree School; Park Road School;
    Saint Martin School""")
TEAMS = phrases("""Larkfield Rovers; Millbrook United; Red Foxes; River Sharks; Blue Eagles;
    Westport Lions; Harbour Bears; Northgate City""")
COMPANIES = phrases("""Sunny Bakery; Golden Spoon; Riverside Hospital; Bright Books; Northern Bank;
    Star Theatre; City Museum; Green Garden Company; Red Door Hotel; Moonlight Cinema;
    Little Owl Library; Harbour Radio""")
BANDS = phrases("Silver Strings; Happy Tramps; Wooden Spoons; Midnight Owls; Paper Kites")
BOOKS = phrases("""The Silver Key; The Last Dragon; A Winter Garden; The Lost Island;
    Seven Small Doors; The Clockmaker; A House by the Sea; The Green Lantern; The Night Train;
    Under the Red Moon""")
FESTIVALS = phrases("""Harvest Festival; Lantern Festival; Spring Fair; New Year; Winter Market;
    Summer Games""")
PET_NAMES = {
    "m": words("Rex Bruno Biscuit Shadow Scruffy Rocky Patch Milo Toby Buster Basil Smoky"),
    "f": words("Luna Juno Snowy Fluffy Misty Cleo Dotty Poppy Pixie Coco Nala Tilly"),
}

# job: (where, what they do, tool)
JOBS = table("""baker: bakery, bake bread, oven; teacher: school, teach children, chalk;
    farmer: farm, grow vegetables, tractor; doctor: hospital, look after sick people, thermometer;
    nurse: hospital, take care of patients, bandage; mailman: post office, deliver letters, bicycle;
    carpenter: workshop, make chairs and tables, saw; painter: studio, paint pictures, brush;
    gardener: garden, plant flowers, spade; cook: restaurant, cook meals, pan;
    waiter: restaurant, serve guests, tray; bus driver: bus station, drive a bus, bus;
    pilot: airport, fly planes, plane; librarian: library, lend books, computer;
    vet: animal clinic, cure animals, needle; tailor: tailor's shop, sew clothes, needle;
    shoemaker: shoe shop, mend shoes, hammer; butcher: butcher's, sell meat, knife;
    fisherman: harbour, catch fish, net; firefighter: fire station, put out fires, hose;
    police officer: police station, catch thieves, whistle; singer: theatre, sing songs, microphone;
    musician: concert hall, play music, violin; actor: theatre, act in plays, mask;
    writer: study, write books, pen; mechanic: garage, repair cars, wrench;
    plumber: workshop, fix pipes, wrench; dentist: clinic, look after teeth, mirror;
    barber: barber's shop, cut hair, scissors; miner: mine, dig for coal, lamp;
    sailor: ship, sail the seas, compass; clerk: bank, count money, calculator;
    shopkeeper: store, sell groceries, scales; builder: building site, build houses, hammer;
    potter: pottery, make bowls from clay, wheel; beekeeper: orchard, keep bees, veil;
    judge: court, judge cases, gown; reporter: newspaper, write articles, notebook;
    scientist: laboratory, do experiments, microscope;
    photographer: studio, take photographs, camera; shepherd: meadow, look after sheep, stick;
    florist: flower shop, sell flowers, scissors""")

COLOURS = words("red blue green yellow white black brown grey pink purple orange golden silver")
SIZES = words("big small little tiny huge large")
AGES = words("old new brand-new ancient")
LOOKS = words("pretty lovely beautiful fine shiny simple strange plain cute")

# thing: the kinds of adjective that suit it (c colour, s size, a age, l look)
THINGS = pairs("""kite: cl; ball: csa; doll: al; book: al; watch: al; ring: al; hat: cal; scarf: cl;
    coat: cal; umbrella: cal; bag: cas; purse: cal; wallet: ca; lamp: al; clock: al; mirror: sal;
    basket: sa; box: cs; drum: sc; guitar: al; flute: al; violin: al; trumpet: al; bell: sal;
    camera: al; bicycle: ca; scooter: ca; sled: ca; boat: cs; toy train: ca; puzzle: sl; bat: a;
    racket: a; telescope: a; torch: sa; key: sa; letter: l; map: a; necklace: l; bracelet: cl;
    vase: cal; cup: cl; teapot: cal; blanket: cal; pillow: cs; notebook: c; pen: cal; paintbox: l;
    teddy bear: csa; balloon: cs; lantern: cal; whistle: cs; compass: al; magnet: s; globe: sa;
    poster: l; diary: cal; chess set: al; skateboard: ca; tent: ca; rucksack: cas;
    pair of gloves: c; jumper: c; pair of boots: ca; pair of glasses: a; sword: a; crown: al;
    record: a; painting: al; photograph: al; candle: c; chair: ca; carpet: cal; bow: al; shell: sl;
    coin: al; stamp: al; feather: cs; ribbon: cl""")
MATERIALS = pairs("""box: wooden; ring: gold; necklace: gold; bracelet: silver; vase: glass;
    scarf: woollen; jumper: woollen; hat: straw; lamp: brass; cup: paper; chair: wooden;
    bell: brass; coat: leather; bag: leather; flute: wooden; mirror: glass; crown: paper;
    sword: wooden""")

# where a lost thing may be
HIDING = phrases("""under the bed; behind the sofa; in the kitchen drawer; on the top shelf;
    under the old oak tree; beside the pond; in the school hall; on the bus; behind the garden shed;
    in the laundry basket; under a pile of leaves; on a park bench; in the attic; in the cellar;
    next to the fountain; between two cushions; in the pocket of a coat; on the river bank;
    by the garden gate; in the back of the car; under the kitchen table; inside a boot;
    on the window sill; behind the stove; near the bus stop; in the library; in a flowerpot;
    on the roof of the barn""")

FOODS = pairs("""bakery: bread rolls biscuits pastries buns;
    store: milk eggs sugar flour salt rice butter cheese tea; market: apples carrots potatoes onions
    tomatoes pears cherries cabbages beans plums; butcher's: meat sausages ham chicken;
    fish market: fish crabs""")
SHOPS = FOODS | pairs("""bookshop: books maps notebooks;
    toy shop: dolls kites puzzles balloons marbles; pharmacy: medicine bandages soap;
    flower shop: roses tulips lilies; shoe shop: shoes boots sandals;
    post office: stamps envelopes postcards; hardware shop: nails paint rope candles;
    clothes shop: shirts coats hats gloves scarves; music shop: guitars flutes drums records;
    jeweller's: rings watches necklaces; garden centre: seeds flowerpots spades; pet shop: goldfish;
    ice cream van: ice cream""")
DISHES = table("""vegetable soup: carrots, onions, potatoes, salt;
    pancakes: flour, milk, eggs, butter; apple pie: apples, flour, butter, sugar;
    tomato salad: tomatoes, onions, oil, salt; chocolate cake: chocolate, flour, eggs, sugar;
    mushroom omelette: mushrooms, eggs, butter, salt; fish stew: fish, tomatoes, onions, pepper;
    rice pudding: rice, milk, sugar, cinnamon; cheese sandwiches: bread, cheese, butter, tomatoes;
    lemon biscuits: lemons, flour, butter, sugar; chicken curry: chicken, rice, onions, spices;
    bean soup: beans, garlic, carrots, pepper; plum jam: plums, sugar, lemons, water;
    noodles: flour, eggs, water, salt; fruit salad: pears, cherries, grapes, honey""")
PLACES = phrases("""park; beach; forest; museum; library; market; castle; harbour; lake; zoo;
    playground; old mill; lighthouse; swimming pool; cinema; village square; railway station;
    orchard; bridge; waterfall; church; theatre; island; cave; meadow; farm; garden; circus""")

WEEKDAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
# three months of each season: spring, summer, autumn, winter
MONTHS = words("""March April May June July August September October November December January
    February""")

# skill: (advice, what goes wrong)
SKILLS = table("""swim: Keep your legs straight and kick, swallowed a mouthful of water; ride a
    bicycle: Look ahead and not at your feet, fell into a hedge; play the piano: Start slowly and
    count to four, hit all the wrong keys; skate: Bend your knees a little, slipped and landed on
    the ice; whistle: Make your lips round and blow gently, made no sound at all;
    juggle: Begin with two balls, dropped every ball;
    knit: Hold the needles loosely, dropped half the stitches;
    play chess: Think before you move, lost the queen at once; tie knots: Cross the ends and pull,
    got a thumb stuck in the rope; bake bread: Let the dough rest for an hour, burnt the first loaf;
    row a boat: Pull with both arms together, went round in circles; paint: Look longer than you
    paint, spilt water over the paper; dance: Listen to the drum, stepped on everyone's toes;
    draw horses: Begin with the big shapes, drew five legs; play the guitar: Press the strings close
    to the metal, broke a string; climb: Move one hand at a time, was afraid to look down; tell the
    time: The short hand shows the hour, mixed up the two hands;
    ski: Lean forward and not back, sat down in the snow""")

# sport: (what one does, what one wins)
SPORTS = table("""race: ran, medal; swimming race: swam, medal; bicycle race: rode, cup;
    sack race: hopped, prize; rowing race: rowed, cup; ski race: skied, medal""")
INSTRUMENTS = words("piano violin flute guitar trumpet drum harp cello")
CLASSES = words("history science maths music geography art reading")
VEHICLES = words("train bus car plane ship bicycle boat")
TREES = words("oak apple birch pine willow maple cherry chestnut")
FLOWERS = words("roses tulips daisies lilies sunflowers violets")
