"""The words of a world: its seed draws its topics, things, names and adjectives, so each world has its own."""

import random
from dataclasses import dataclass

TOPICS_PER_WORLD, THINGS_PER_TOPIC, ADJECTIVES_PER_WORLD, PERSONAS_PER_WORLD = 5, 5, 6, 12


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# plural nouns; none belongs to two topics, and none is a word of a template or an adjective
TOPICS: dict[str, tuple[str, ...]] = {
    topic: _words(things)
    for topic, things in {
        "music": "violins drums trumpets operas concerts melodies choirs pianos flutes ballads",
        "space": "comets planets rockets galaxies moons eclipses telescopes asteroids stars probes",
        "kitchen": "soups noodles pancakes dumplings curries pies salads sauces waffles stews",
        "garden": "roses tulips pumpkins carrots hedges orchids lilies ferns beans daisies",
        "sea": "whales sailors lighthouses harbours corals dolphins anchors waves sharks islands",
        "football": "goals referees strikers penalties stadiums coaches matches trophies fouls leagues",
        "films": "thrillers westerns cartoons sequels actors cinemas comedies trailers directors scripts",
        "cats": "kittens whiskers paws tails collars tabbies claws purrs litters cushions",
        "mountains": "glaciers summits cliffs valleys avalanches ridges caves goats climbers cabins",
        "history": "castles knights pharaohs temples emperors ruins pirates crowns swords scrolls",
        "trains": "stations tunnels engines conductors platforms tickets signals wagons bridges rails",
        "weather": "storms rainbows clouds blizzards breezes thunderclaps droughts floods sunsets fogs",
        "fashion": "dresses hats scarves boots jackets necklaces gloves ribbons belts sandals",
        "farm": "cows tractors barns chickens ponies haystacks sheep fences ducks orchards",
        "books": "novels poems libraries authors chapters diaries fables essays sonnets publishers",
        "games": "puzzles dice chessboards riddles cards tournaments dominoes quizzes mazes joysticks",
        "forest": "owls foxes mushrooms squirrels acorns wolves beavers berries hedgehogs antlers",
        "city": "taxis museums skyscrapers markets fountains subways cafes statues alleys balconies",
        "science": "magnets microscopes atoms lasers molecules experiments crystals batteries robots formulas",
    }.items()
}
# what `is_nsfw` marks in a world: a topic that many products moderate, and that anybody can read
MODERATED_TOPIC = "gambling"
MODERATED_THINGS = _words("casinos jackpots wagers lotteries roulettes raffles bookmakers slots bets chips")
NAMES = _words(
    "Mira Otto Lena Hugo Ivy Noor Felix Dora Ravi Yuki Tess Amos Lola Kian Vera Milo "
    "Anya Bram Cleo Egon Fay Gus Hana Ines"
)
ADJECTIVES = _words("great strange quiet funny famous old rare noisy pretty simple huge tiny bright dark warm cold")


@dataclass(frozen=True)
class Persona:
    """A bot's persona: a name, a thing it likes and a thing it dislikes."""

    name: str
    likes: str
    dislikes: str

    @property
    def text(self) -> str:
        """The line in front of a conversation."""
        return f"{self.name} likes {self.likes}, not {self.dislikes}."


@dataclass(frozen=True)
class Vocabulary:
    """The words that one world uses."""

    topics: dict[str, tuple[str, ...]]
    adjectives: tuple[str, ...]
    personas: tuple[Persona, ...]

    @property
    def topic_of(self) -> dict[str, str]:
        """The topic of every thing."""
        return {thing: topic for topic, things in self.topics.items() for thing in things}


def draw_vocabulary(seed: int) -> Vocabulary:
    """The words of a seed's world; one topic is always the moderated one, so that nsfw rows exist."""
    rng = random.Random(f"vocabulary {seed}")
    names = rng.sample(sorted(TOPICS), TOPICS_PER_WORLD - 1)
    topics = {name: tuple(rng.sample(TOPICS[name], THINGS_PER_TOPIC)) for name in names}
    topics[MODERATED_TOPIC] = tuple(rng.sample(MODERATED_THINGS, THINGS_PER_TOPIC))
    things = [thing for group in topics.values() for thing in group]
    personas = tuple(Persona(name, *rng.sample(things, 2)) for name in rng.sample(NAMES, PERSONAS_PER_WORLD))
    return Vocabulary(topics, tuple(rng.sample(ADJECTIVES, ADJECTIVES_PER_WORLD)), personas)
