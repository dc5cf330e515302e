"""What spec/check runs: each model as it is, and each rule left out."""
import dataclasses

# By model; FAULTS of any kind in one execution.
SIZES = {
    "small": {"handoff.pml": ("REQS=2", "LIVES=1", "FAULTS=1"), "push.pml": ()},
    "full": {"handoff.pml": ("REQS=2", "LIVES=2", "FAULTS=1"), "push.pml": ()},
}


@dataclasses.dataclass
class Row:
    name: str
    model: str
    flags: tuple = ()
    found: bool = True  # whether an error must be found
    cycles: bool = False  # looks for executions without an end, instead of wrong states
    size: tuple | None = None  # otherwise that of SIZES
    full: bool = False  # only with --full
    hashed: bool = False  # states are kept as hashes: for what does not fit into memory otherwise
    sim: str = ""  # the mutant of sim/ that the trail of this one is played on


NO_FAULTS = ("REQS=2", "LIVES=1", "FAULTS=0")
RETRIES = ("REQS=2", "LIVES=2", "FAULTS=1")
SILENCE = (*RETRIES, "ONLY_SILENCE")


def handoff(name, *flags, **more):
    return Row(name, "handoff.pml", flags, **more)


def push(name, *flags, **more):
    return Row(name, "push.pml", flags, **more)


ROWS = [
    handoff("handoff", found=False),
    handoff("handoff, a crash of each side", "CRASHES=1", "FAULTS=0", found=False),
    handoff("handoff, two faults", size=("REQS=2", "LIVES=2", "FAULTS=2"), found=False, full=True, hashed=True),
    handoff("handoff, a crash of each side and a fault", size=("REQS=2", "LIVES=2", "FAULTS=1", "CRASHES=1"), found=False, full=True,
            hashed=True),
    handoff("handoff: no execution goes on for ever", found=False, cycles=True, size=NO_FAULTS),
    handoff("handoff, prefill computes another prompt", "B_PLACEHOLDER", found=False),
    handoff("rejected goes on", "M_REJECT_GOES_ON", sim="rejected-goes-on"),
    handoff("coverage by the peer's length", "M_PEERS_LENGTH", sim="peers-length"),
    handoff("a stream's normal end taken as success", "M_END_IS_SUCCESS", sim="end-is-success"),
    handoff("page freed at a timeout", "M_FREE_AT_TIMEOUT", sim="freed-at-timeout"),
    handoff("page freed while an own read is out", "M_NO_DRAIN", "M_NO_COUNT", sim="freed-at-timeout"),
    handoff("  only the handoff does not wait", "M_NO_DRAIN", found=False),
    handoff("  only the pool does not count", "M_NO_COUNT", found=False),
    handoff("no step fence at prefill", "M_NO_FENCE_AT_PREFILL"),
    handoff("no step fence at decode", "M_NO_FENCE_AT_DECODE", sim="no-step-fence"),
    handoff("stale generation accepted", "M_STALE_GENERATION", "M_NO_DRAIN", "M_NO_COUNT", sim="stale-generation-freed"),
    handoff("  only that", "M_STALE_GENERATION", found=False),
    handoff("identity not checked", "M_NO_IDENTITY", sim="identity-not-checked"),
    handoff("identity copied from the request", "M_IDENTITY_FROM_REQUEST", "B_PLACEHOLDER", sim="identity-from-request"),
    handoff("checked and then changed before use", "M_CHECKED_AT_SOURCE", sim="changed-after-check"),
    handoff("no checksum", "M_NO_CHECKSUM", sim="no-checksum"),
    handoff("  without faults the pin is enough", "M_NO_CHECKSUM", found=False, size=NO_FAULTS),
    handoff("pin dropped before the last read, and no checksum", "M_PIN_DROPPED", "M_NO_CHECKSUM", size=NO_FAULTS, sim="pin-dropped"),
    handoff("  only the pin is dropped", "M_PIN_DROPPED", found=False),
    handoff("prefix key without domain", "M_KEY_WITHOUT_DOMAIN", sim="key-without-domain"),
    handoff("completion before all parts, and no checksum", "M_DONE_TOO_EARLY", "M_NO_CHECKSUM", size=NO_FAULTS,
            sim="done-before-all-parts"),
    handoff("  only completion before all parts", "M_DONE_TOO_EARLY", found=False),
    handoff("pin after look-up", "M_PIN_AFTER_LOOKUP", sim="pin-after-lookup"),
    handoff("pins held while queued", "M_PIN_WHILE_QUEUED", sim="pins-held-while-queued"),
    handoff("page-by-page prefill allocation", "M_PAGE_BY_PAGE", "DPAGES=4", size=NO_FAULTS, sim="page-by-page"),
    handoff("window below one page", "WINDOW=0", size=NO_FAULTS, sim="window-below-a-page"),
    handoff("a second read of a page", "M_SECOND_READ", sim="second-read"),
    handoff("sealed before all layers are written", "M_SEALED_TOO_EARLY", sim="sealed-too-early"),
    handoff("retry reuses the attempt, and no checksum", "M_SAME_ATTEMPT", "M_NO_CHECKSUM", size=SILENCE, sim="retry-same-attempt"),
    handoff("  silence and no checksum", "M_NO_CHECKSUM", size=SILENCE, found=False),
    handoff("two decodes stream one request", "M_TWO_STREAM", size=RETRIES, sim="two-streams"),
    push("push: nobody crashes", found=False),
    push("push: prefill crashes, and a page is lost", "B_CRASH"),
    push("push: page freed at a timeout", "M_FREE_AT_TIMEOUT"),
    push("push: page freed at a crash", "M_FREE_AT_CRASH", "B_CRASH"),
    push("push: acknowledged before the write has landed", "M_ACK_TOO_EARLY"),
    push("push: completion before all parts", "M_DONE_TOO_EARLY"),
    push("push: retry reuses the room", "M_SAME_ROOM"),
]
