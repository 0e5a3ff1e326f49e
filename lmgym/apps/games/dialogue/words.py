"""English words with three related words and a clue each, written for these games: `word | related words | clue`.

No clue has its word, a related word or a variant of one in it (tests/unit/apps/games/dialogue/test_words.py).
"""

from dataclasses import dataclass
from functools import cache

COMMON = """
apple | fruit tree pie | round and red or green, said to keep the doctor away
bread | loaf flour toast | a baker makes it, and people put butter on it
chair | seat table sit | furniture with four legs and a back, for one person
table | chair desk furniture | a flat top on four legs, where dinner is served
house | home building roof | a family lives in it, with rooms and a front door
water | drink river wet | clear liquid that falls as rain
river | water stream bridge | it flows from the mountains to the sea
horse | ride animal saddle | it gallops, eats hay and wears iron shoes
mouse | cat cheese rodent | small and grey with a long tail, it fears owls
sheep | wool lamb farm | a white flock on a hill, counted by those who cannot sleep
tiger | stripes cat jungle | big orange hunter with black lines
snake | poison reptile bite | long without legs, it hisses
music | song sound play | what an orchestra makes and radios bring
piano | keys music instrument | it has black and white parts to press, and pedals
dance | music ballet move | what couples do at a wedding, step by step
night | day dark moon | the hours when stars are seen
light | lamp dark bright | what the sun gives, and a bulb too
ocean | sea water waves | the Pacific is the largest one
beach | sand sea sun | the shore where holiday makers lie on towels
cloud | sky rain white | fluffy shape high above that brings showers
storm | wind thunder rain | bad weather at which ships stay in the harbour
plant | green grow leaf | a living thing in a pot that needs earth and care
grass | green lawn cow | what a mower cuts in the garden
stone | rock hard pebble | a small grey piece of a mountain, thrown into ponds
money | bank coin pay | people earn it at work and spend it in shops
clock | time hour watch | two hands on a wall, it ticks
phone | call ring talk | a device in every pocket, with numbers and a screen
radio | music station listen | it brings voices and news through the air without pictures
paper | write sheet book | thin and white, made from wood, used in printers
plate | dish food eat | flat and round, on it a meal is served
knife | cut sharp fork | the blade beside the spoon
spoon | fork soup eat | it stirs tea and carries sugar
glass | window drink bottle | clear and easily broken, one holds milk
dress | skirt wear clothes | a bride has a long white one
shirt | trousers wear button | it has sleeves and a collar, a tie goes with it
shoes | feet socks boots | a pair with laces, to walk in
smile | happy mouth laugh | the face does it for a photograph
heart | love blood beat | it pumps inside the chest
brain | head think mind | the organ inside the skull
mouth | teeth lips speak | the part of the face that opens for food
child | kid baby parent | a boy or girl who is not grown up
woman | man lady girl | a grown female person
uncle | aunt nephew family | the brother of a father
queen | king crown throne | she rules a country and lives in a palace
train | railway station track | it runs on two rails and stops at platforms
truck | car driver road | a large vehicle that brings goods along motorways
plane | fly airport wings | it crosses the Atlantic with passengers in seven hours
wheel | car round tyre | a bicycle has two of them
paint | brush colour wall | an artist puts it on a canvas
sugar | sweet cake candy | white crystals that people put into coffee
lemon | sour yellow fruit | a juicy thing like a small orange that makes faces twist
honey | bee sweet hive | golden and sticky, bears love it
pizza | cheese italian tomato | flat and round from Naples, cut in slices
salad | lettuce vegetable tomato | raw leaves with oil and vinegar
earth | planet world ground | the third one from the sun, where we live
world | earth globe planet | all countries and seas together
green | colour grass leaf | what traffic lights show when cars may go
black | white dark colour | like coal or a raven
seven | number six eight | days in a week, dwarfs in a tale
north | south compass direction | where the needle points, towards the pole
youth | young old age | the years before one is an adult
sleep | bed night dream | eyes closed for eight hours
dream | sleep night nightmare | pictures in the head before one wakes up
party | birthday guests celebrate | balloons and cake with friends
story | book tell tale | it begins with once upon a time
board | wood plank chess | flat piece on which teachers write with chalk
fence | garden gate neighbour | wooden posts around a meadow
tower | high castle building | Paris has a famous iron one
kitchen | cook oven food | the room where meals are made
garden | flower plant grow | the place behind the house with beds and a hedge
window | glass curtain view | an opening in a wall that lets the sun in
doctor | hospital nurse patient | a person who treats people when they are ill
teacher | school pupil class | she explains sums to children
winter | cold snow summer | the season of Christmas and ice
summer | hot sun winter | the season of long days and holidays by the sea
bridge | river cross water | cars drive over it from one bank to the other
school | teacher pupil learn | the place where children go in the morning with bags
letter | mail post stamp | it comes in an envelope
orange | fruit juice colour | round and full of vitamins, from Spain
rabbit | bunny carrot hare | it hops and has long ears
market | shop buy stall | a square with fruit and fish on Saturdays
island | sea water beach | a piece of earth with waves on every side
camera | photo picture lens | it keeps moments, on film or as files
pencil | write pen draw | a wooden stick with a grey core and an eraser
monkey | ape banana tree | it climbs and swings by its tail
engine | motor car machine | the part under the bonnet that burns petrol
bottle | drink glass wine | a container with a cork or a cap
"""
LESS_COMMON = """
anvil | hammer iron forge | a blacksmith beats hot metal on it
badge | police button name | a sheriff wears one like a star
bacon | pork breakfast egg | thin salty slices fried in a pan
bagel | bread hole cream | a ring from New York bakeries
banjo | guitar music strings | round instrument of bluegrass players
bench | park sit seat | a long place in the open for several people to rest
berry | fruit bush jam | small and juicy, straw and blue go before it
bison | buffalo prairie herd | huge and shaggy, it roamed the American plains
blade | knife sharp sword | the cutting part of a razor
broom | sweep witch clean | a long stick that tidies floors and flies at Halloween
camel | desert hump sand | it goes without water for days and carries nomads
canoe | boat paddle river | a narrow vessel of native Americans
cargo | ship freight load | what a vessel carries in containers
cedar | tree wood lebanon | evergreen that smells good and keeps moths away
chess | board king game | two players, bishops and knights, and mate at the end
cliff | steep rock edge | Dover has white ones
cobra | snake venom hood | it rises when a flute plays
comet | tail space star | Halley saw one that returns every 76 years
coral | reef sea fish | Australia has a great barrier of it
couch | sofa sit living | soft furniture for watching television
crane | lift bird building | a tall machine that raises heavy things at a site
daisy | flower petal white | loves me, loves me not
diary | write secret day | a private book with dates
diver | water swim sea | he has fins and a tank of air
eagle | bird wings prey | it nests on peaks and is bald in America
ember | fire coal ash | it still glows when the flames are out
fairy | wings magic tale | a tiny being that comes for a tooth
ferry | boat cross river | it takes cars over to the other shore
flame | fire candle burn | it dances at the end of a match
flute | music wind instrument | a silver pipe played sideways
frost | ice cold winter | white crystals on the windscreen in the morning
ghost | spirit haunt white | it walks at midnight in old castles
giant | big tall huge | Jack met one on top of the beanstalk
globe | world earth map | a ball with all countries on it
grape | wine fruit vine | small and sweet, it hangs in bunches
hotel | room guest stay | a place with a lobby where tourists spend the night
igloo | ice eskimo snow | a round shelter in the Arctic
ivory | elephant tusk white | a precious material that is forbidden to trade
jelly | jam wobble sweet | it shakes on a dessert dish
judge | court law trial | a person in a robe with a hammer
kayak | boat paddle river | it reads the same from behind
koala | australia bear eucalyptus | grey and sleepy, it carries its young in a pouch
laser | light beam red | a pointer for talks, and a sword in films
ledge | edge cliff shelf | a narrow place to stand on a wall of rock
llama | peru wool alpaca | it spits and carries loads in the Andes
mango | fruit tropical yellow | sweet and soft, it makes a good lassi
maple | tree syrup canada | its leaf is on a flag
medal | gold win sport | the best three at Olympia get one
molar | tooth chew dentist | it is wide and far back in the jaw
motel | room road sleep | cheap stay with a parking lot in front of the door
nurse | hospital doctor patient | she takes temperatures and changes bandages
oasis | desert water palm | a green place among dunes
onion | cry vegetable layer | it brings tears to a cook
opera | sing music stage | Verdi and Wagner wrote many
otter | river swim fur | it floats on its back and cracks shells
panda | bamboo china bear | black and white, it chews all day
pearl | oyster necklace jewel | a shiny ball out of a shell
petal | flower rose leaf | the coloured part that falls off a blossom
pilot | plane fly cockpit | the captain who speaks above the clouds
pouch | kangaroo bag pocket | a young wallaby lives in it
quilt | blanket bed patchwork | grandmother sewed it out of many pieces
raven | bird black crow | Poe wrote that it said nevermore
robot | machine metal android | it welds cars, and some clean floors
ruler | king measure line | a straight stick with centimetres
saint | holy church patron | Nicholas and Patrick were such men
scarf | neck wool winter | a long warm cloth worn with gloves
shark | fin teeth sea | a film about one kept swimmers at home
skate | ice wheels rink | it glides under a hockey player
spear | throw weapon point | hunters of mammoths had one
squid | tentacle ink sea | it has ten arms and becomes calamari
sword | knight blade fight | Arthur pulled one out of a stone
syrup | sweet sugar pancake | thick and sticky, poured at breakfast
torch | light fire flashlight | a runner brings it to the stadium
trout | fish river salmon | Schubert wrote a quintet about it
tulip | flower dutch spring | Holland grows fields of it
vault | bank safe gold | a strong room with a thick door
whale | ocean mammal huge | Jonah was inside one, and Ahab hunted another
wheat | flour grain bread | it grows in golden fields
witch | magic broom spell | Hansel and Gretel met her in a cottage
yacht | boat sail rich | a millionaire anchors it at Monaco
zebra | stripes africa horse | black and white, it grazes beside lions
lantern | light lamp candle | children carry it in November
compass | north needle direction | sailors find their way with it
volcano | lava mountain eruption | Vesuvius and Etna are such peaks
penguin | bird antarctica ice | it waddles in a tuxedo
dolphin | sea fish mammal | clever swimmer that leaps and clicks
cathedral | church bishop tower | Cologne and Chartres have a famous one
umbrella | rain wet weather | it opens above a head on grey days
mirror | reflection glass face | it shows the one who looks at it
anchor | ship harbour chain | heavy iron that holds a vessel in place
blanket | bed warm cover | woollen cloth for cold evenings on the sofa
saddle | horse ride leather | a cowboy sits on it
"""
LEVELS = ("common", "less_common")


@dataclass(frozen=True)
class Word:
    """A word with what players say about it."""

    text: str
    related: tuple[str, ...]
    """that a clue may not have either"""
    clue: str
    level: str
    """one of LEVELS"""


@cache
def all_words() -> dict[str, Word]:
    """All words by text."""
    found = {}
    for level, table in zip(LEVELS, (COMMON, LESS_COMMON), strict=True):
        for line in table.strip().splitlines():
            text, related, clue = line.split(" | ")
            found[text] = Word(text, tuple(related.split()), clue, level)
    return found


@cache
def words_of(level: str, letters: int | None = None) -> tuple[Word, ...]:
    """The words of a level, or those of so many letters."""
    return tuple(w for w in all_words().values() if w.level == level and letters in (None, len(w.text)))
