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
 * The identifier of a communicator: one rank makes it, and all ranks open the communicator with it.
 *
 * <p>Ranks that are threads of one program share this object. Opening then names a rank that does not join, a timeout names the ranks that
 * are behind, and {@link #fail} ends the wait of all. After {@link #toBytes()}, ranks may be in other processes, of which only calls of
 * {@link #fail} are known.
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: {@code ncclGetUniqueId} and {@code ncclUniqueId} of {@code nccl.h}.
 */
public final class UniqueId {
    /** The most ranks that are threads: memory for their meeting grows with the square of their number. */
    private static final int MOST_THREADS = 1024;

    private final byte[] bytes;
    private final ProcessRanks peers;
    /** The processes that open the communicator, by rank; null if their numbers are those of its ranks. */
    private final @Nullable List<Integer> processes;

    private boolean travels;
    private @Nullable ThreadRanks meeting;
    /** A failure before any rank had joined. */
    private @Nullable RankFailure early;

    private UniqueId(byte[] bytes, boolean travels, ProcessRanks peers, @Nullable List<Integer> processes) {
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
            return new UniqueId(id.toArray(ValueLayout.JAVA_BYTE), false, new ProcessRanks(), null);
        }
    }

    /**
     * Returns the version of the loaded NCCL, 22809 for 2.28.9, which must be the same on all ranks.
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
     * @param bytes from {@link #toBytes()} of that process
     * @throws IllegalArgumentException when it has another length
     */
    public static UniqueId of(byte[] bytes) {
        int expected = Nccl.NCCL_UNIQUE_ID_BYTES();
        if (Checks.given("bytes", bytes).length != expected) {
            throw new IllegalArgumentException("bytes: expected " + expected + " bytes, got " + bytes.length);
        }
        return new UniqueId(bytes.clone(), true, new ProcessRanks(), null);
    }

    /** Returns the identifier of a communicator of {@code processes}, which were ranks of another communicator before. */
    static UniqueId of(byte[] bytes, ProcessRanks peers, List<Integer> processes) {
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
     * Reports that {@code rank} has failed: its peers that share this object throw a {@link RankFailedException} from the collective that
     * they are in or call next, on all communicators of this identifier and on those split from them, or shrunk from them with the rank. A
     * rank that opens the communicator later throws it then. With ranks in other processes, each process must report failures by its own
     * call.
     *
     * @param rank the rank that failed; -1 when it is in another process and not known
     * @param cause its exception
     * @throws IllegalArgumentException when there is no such rank
     */
    public void fail(int rank, Throwable cause) {
        ensureRank(rank, -1);
        RankFailure failed = RankFailure.thrown(rank, Checks.given("cause", cause));
        ThreadRanks present;
        ProcessRanks told = peers();
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

    /** Returns the ranks that are threads of this program; null until one of them has opened a communicator. */
    private synchronized @Nullable ThreadRanks opened() {
        return meeting;
    }

    /**
     * Reports that {@code rank} has finished: peers that share this object and wait for it, now or later, throw a {@link
     * RankFailedException} at once.
     *
     * @param rank the rank that makes no further calls
     * @throws IllegalArgumentException when there is no such rank
     */
    public void finish(int rank) {
        ensureRank(rank, 0);
        ThreadRanks present = opened();
        if (present != null) {
            present.finished(rank);
        }
    }

    /**
     * Returns whether {@code rank}, a thread of this program, takes part in an {@link Agreement} after a failure, or goes on after it.
     *
     * @throws IllegalArgumentException when there is no such rank
     */
    public boolean goesOn(int rank) {
        ensureRank(rank, 0);
        ThreadRanks present = opened();
        return present != null && present.accords.goesOn(rank);
    }

    /**
     * Returns how many communicators of ranks that are threads of this program have failed: the one opened with this, and those that
     * {@linkplain Communicator#shrink shrinks} have made from it and that are still open.
     */
    public int failures() {
        ThreadRanks present = opened();
        return present == null ? 0 : present.failures();
    }

    /**
     * Sets the function that asks ranks in other processes after a timeout, so that the error names the ranks that are behind.
     *
     * @param asked takes a question, which each other process passes to {@link #answer}, and returns the ranks that are behind
     */
    public void askThrough(Function<String, List<Integer>> asked) {
        peers.askThrough(Checks.given("asked", asked));
    }

    /**
     * Sets the implementation by which ranks in other processes agree on the remaining ranks, for {@link Agreement}. It must call {@link
     * #goOn} before {@link PeerAgreement#agree} returns.
     */
    public void agreeThrough(PeerAgreement agreed) {
        peers.agreeThrough(Checks.given("agreed", agreed));
    }

    /**
     * Sets the function that sends this rank's next call to ranks in other processes: it takes the processes and a text, which they pass to
     * {@link #hear}. {@link CollectiveChecks#FULL} needs it.
     */
    public void tellThrough(BiConsumer<List<Integer>, String> told) {
        peers.calls.tellThrough(Checks.given("told", told));
    }

    /** Returns whether {@link #tellThrough} was called. */
    boolean areTold() {
        return peers.calls.areTold();
    }

    /**
     * Receives the text that another process has sent by {@link #tellThrough}.
     *
     * @throws IllegalStateException when that process has announced too many calls that this one has not compared yet
     */
    public void hear(int process, String text) {
        peers.calls.hear(process, Checks.given("text", text));
    }

    /**
     * Called when the remaining ranks in other processes are decided: earlier failures do not end communicators that they open from now on.
     */
    public void goOn() {
        peers.goOn();
    }

    /** Returns this rank's progress, for a rank in another process that asks. */
    public PeerProgress answer(String question) {
        return peers.answer(Checks.given("question", question));
    }

    /** Returns the state of ranks in other processes, or null when there are none. */
    synchronized @Nullable ProcessRanks peers() {
        return travels ? peers : null;
    }

    /** Checks that there is such a rank, as far as the number of ranks is known. */
    private synchronized void ensureRank(int rank, int least) {
        int most = meeting == null ? Integer.MAX_VALUE : meeting.ranks - 1;
        if (rank < least || rank > most) {
            throw new IllegalArgumentException("rank: expected " + least + " to " + most + ", got " + rank);
        }
    }

    /** Returns the meeting point of ranks of this program, or null when ranks may be in other processes. */
    synchronized @Nullable ThreadRanks meeting(int ranks) {
        if (travels) {
            return null;
        }
        if (ranks > MOST_THREADS) {
            throw new IllegalArgumentException(
                    "ranks: expected at most " + MOST_THREADS + " that are threads of one program, got " + ranks);
        }
        ThreadRanks present = meeting;
        if (present == null) {
            present = new ThreadRanks(ranks);
            if (early != null) {
                present.fail(early);
            }
            meeting = present;
        }
        if (present.ranks != ranks) {
            throw new IllegalArgumentException(
                    "ranks: expected " + present.ranks + ", as another rank said, got " + ranks);
        }
        return present;
    }

    MemorySegment copyTo(Arena arena) {
        return arena.allocateFrom(ValueLayout.JAVA_BYTE, bytes);
    }
}
