package dev.chagres.nccl;

import dev.chagres.bindings.NativeLibraries;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.bindings.nccl.ncclUniqueId;
import dev.chagres.internal.Checks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.function.BiConsumer;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * What the ranks of one communicator have in common: one of them makes it, all open the communicator with it.
 *
 * <p>Ranks that are threads of one program share this object. They then know of each other: opening names a rank that never
 * comes, a timeout names the ranks that are behind, and {@link #fail} releases all. Once {@link #toBytes()} was called, ranks may
 * be in other processes, and of those nothing is known but what {@link #fail} is told.
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: {@code ncclGetUniqueId} and {@code ncclUniqueId} of {@code nccl.h}.
 */
public final class UniqueId {
    private final byte[] bytes;
    private final Peers peers;
    /** The processes that open the communicator, by rank; null where they are numbered as its ranks. */
    private final @Nullable List<Integer> processes;

    private boolean travels;
    private @Nullable Meeting meeting;
    /** What failed before any rank had come. */
    private @Nullable RankFailure early;

    private UniqueId(byte[] bytes, boolean travels, Peers peers, @Nullable List<Integer> processes) {
        this.bytes = bytes;
        this.travels = travels;
        this.peers = peers;
        this.processes = processes;
    }

    /**
     * Makes an identifier that no other communicator has.
     *
     * @throws dev.chagres.bindings.NcclException when NCCL cannot open its socket
     * @throws dev.chagres.bindings.MissingLibraryException when the provider's libraries cannot be opened
     */
    public static UniqueId create() {
        NativeLibraries.ensureLoaded();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment id = ncclUniqueId.allocate(arena);
            Status.nccl(Nccl.ncclGetUniqueId(id), "ncclGetUniqueId");
            return new UniqueId(id.toArray(ValueLayout.JAVA_BYTE), false, new Peers(), null);
        }
    }

    /**
     * Returns the version of the NCCL that is loaded, 22809 for 2.28.9: that of all ranks must be the same.
     *
     * @throws dev.chagres.bindings.MissingLibraryException when the provider's libraries cannot be opened
     */
    public static int ncclVersion() {
        NativeLibraries.ensureLoaded();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment version = arena.allocate(ValueLayout.JAVA_INT);
            Status.nccl(Nccl.ncclGetVersion(version), "ncclGetVersion");
            return version.get(ValueLayout.JAVA_INT, 0);
        }
    }

    /**
     * Returns the identifier that another process has sent.
     *
     * @param bytes what {@link #toBytes()} returned there
     * @throws IllegalArgumentException when it has another length
     */
    public static UniqueId of(byte[] bytes) {
        int expected = Nccl.NCCL_UNIQUE_ID_BYTES();
        if (Checks.given("bytes", bytes).length != expected) {
            throw new IllegalArgumentException("bytes: expected " + expected + " bytes, got " + bytes.length);
        }
        return new UniqueId(bytes.clone(), true, new Peers(), null);
    }

    /** Returns the identifier of a communicator of {@code processes}, all of which had ranks of another communicator before. */
    static UniqueId of(byte[] bytes, Peers peers, List<Integer> processes) {
        return new UniqueId(bytes, true, peers, processes);
    }

    /** Returns the rank of a process; -1 when it is none. */
    int rank(int process) {
        return processes == null ? process : processes.indexOf(process);
    }

    /**
     * Returns the identifier as bytes, for ranks in other processes.
     *
     * @throws IllegalStateException when a rank of this program, which waits for threads of it, has opened the communicator already
     */
    public synchronized byte[] toBytes() {
        if (meeting != null) {
            throw new IllegalStateException(
                    "toBytes: expected before a rank opens the communicator, got it after: that rank"
                            + " waits for threads of this program; make another with UniqueId.create()");
        }
        travels = true;
        return bytes.clone();
    }

    /**
     * Says that {@code rank} has failed: its peers that share this object throw a {@link RankFailedException} from the collective
     * that they are in or call next, from all communicators of this identifier and from those split from them or shrunk with the rank in
     * them. A rank that opens the communicator later throws it from there. Where ranks are in other processes, each says in its own what
     * it has heard of them.
     *
     * @param rank the rank that failed; -1 when it is in another process, and nobody knows which it is
     * @param cause what it threw
     */
    public void fail(int rank, Throwable cause) {
        RankFailure failed = RankFailure.thrown(rank, Checks.given("cause", cause));
        Meeting present;
        Peers told = peers();
        if (told != null) {
            told.fail(rank, cause);
            return;
        }
        synchronized (this) {
            present = meeting;
            if (present == null && early == null) {
                early = failed;
            }
        }
        if (present != null) {
            present.thrown(rank, cause);
        }
    }

    /**
     * Says that {@code rank} has done its work: peers that share this object and wait for it all the same, or will, throw a {@link
     * RankFailedException} at once.
     *
     * @param rank the rank that calls nothing more
     */
    public void finish(int rank) {
        Meeting present;
        synchronized (this) {
            present = meeting;
        }
        if (present != null) {
            present.finished(rank);
        }
    }

    /** Returns whether {@code rank}, a thread of this program, takes part in an {@link Agreement} after a failure, or goes on after it. */
    public boolean goesOn(int rank) {
        Meeting present;
        synchronized (this) {
            present = meeting;
        }
        return present != null && present.accords().goesOn(rank);
    }

    /**
     * Names who is asked when the timeout of a rank is over: what {@link #answer} says of each rank in another process, so that the error
     * names those which did not come.
     *
     * @param asked takes a question, for {@link #answer} there, and returns the ranks that are to blame
     */
    public void askThrough(Function<String, List<Integer>> asked) {
        peers.askThrough(Checks.given("asked", asked));
    }

    /**
     * Names who finds out which ranks in other processes are left when one has failed, for {@link Agreement}. When that is decided, {@link
     * #goOn} is called before {@link PeerAgreement#agree} returns.
     */
    public void agreeThrough(PeerAgreement agreed) {
        peers.agreeThrough(Checks.given("agreed", agreed));
    }

    /**
     * Names who tells ranks in other processes what this one is about to call: the processes and a text, which comes to {@link #hear} there.
     * {@link CollectiveChecks#FULL} needs it.
     */
    public void tellThrough(BiConsumer<List<Integer>, String> told) {
        peers.calls().tellThrough(Checks.given("told", told));
    }

    /** Returns whether ranks in other processes can be told what this one calls. */
    boolean areTold() {
        return peers.calls().areTold();
    }

    /** Takes what another process has said through {@link #tellThrough}. */
    public void hear(int process, String text) {
        peers.calls().hear(process, Checks.given("text", text));
    }

    /**
     * Says that it was decided which ranks in other processes are left: what failed before does not end communicators that they open from
     * now on.
     */
    public void goOn() {
        peers.goOn();
    }

    /** Returns where this rank is, for one in another process that asks. */
    public PeerProgress answer(String question) {
        return peers.answer(Checks.given("question", question));
    }

    /** Returns what is known of ranks in other processes, or null when there are none. */
    synchronized @Nullable Peers peers() {
        return travels ? peers : null;
    }

    /** Returns where ranks of this program meet, or null when ranks may be elsewhere. */
    synchronized @Nullable Meeting meeting(int ranks) {
        if (travels) {
            return null;
        }
        Meeting present = meeting;
        if (present == null) {
            present = new Meeting(ranks);
            if (early != null) {
                present.fail(early);
            }
            meeting = present;
        }
        if (present.ranks() != ranks) {
            throw new IllegalArgumentException(
                    "ranks: expected " + present.ranks() + ", as another rank said, got " + ranks);
        }
        return present;
    }

    MemorySegment copyTo(Arena arena) {
        return arena.allocateFrom(ValueLayout.JAVA_BYTE, bytes);
    }
}
