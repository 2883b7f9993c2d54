package dev.chagres.launch;

import dev.chagres.Device;
import dev.chagres.internal.Checks;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.UniqueId;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Runs one body on several ranks, which are threads of this program or processes, each with a device and a communicator.
 *
 * <p>A rank that throws ends the wait of the others in every collective, and {@link #run} throws a {@link RankFailedException} that names
 * it. A rank that does not call a collective within the configured timeout counts as failed.
 *
 * {@snippet file="dev/chagres/sharding/CollectivesExampleTest.java" region="ranks"}
 *
 * <p>Threading: immutable; {@link #run} may be called from any thread, one call at a time for the same devices.
 */
public final class Ranks {
    /** The message of a rank that joins, which contains the purpose, has at most 64 KiB. */
    private static final int LONGEST_PURPOSE = 1 << 15;

    private final int count;
    private final CommunicatorConfig config;
    /** Null if ranks are threads of this program. */
    private final @Nullable RankProcess process;

    private final String what;

    private Ranks(int count, CommunicatorConfig config, @Nullable RankProcess process, String what) {
        this.count = count;
        this.config = config;
        this.process = process;
        this.what = what;
    }

    /**
     * Returns ranks that are threads of this program, rank r on device r.
     *
     * @param count N
     * @throws IllegalArgumentException when count is below 1, or there are fewer devices
     */
    public static Ranks local(int count) {
        int devices = Device.count();
        if (count < 1 || count > devices) {
            throw new IllegalArgumentException("count: expected 1 to " + devices
                    + " ranks, for each needs a device of its own, got " + count
                    + "; on the reference CHAGRES_REFERENCE_DEVICES says how many there are");
        }
        return new Ranks(count, CommunicatorConfig.standard(), null, "");
    }

    /**
     * Returns ranks that are processes, of which this process is one: {@code ./chagres launch}, torchrun, Slurm, Open MPI or a Kubernetes
     * indexed job has started it, and environment variables say which rank it is. Ranks connect to {@code CHAGRES_STORE_ADDRESS} and {@code
     * CHAGRES_STORE_PORT}, where rank 0 listens, and share the secret of {@code CHAGRES_STORE_SECRET} or of the file that {@code
     * CHAGRES_STORE_SECRET_FILE} names. A rank that has waited for others for ten seconds says in the log for which.
     *
     * @throws IllegalArgumentException when a variable is absent or has no usable value; the text names it
     */
    public static Ranks fromEnvironment() {
        RankEnvironment environment = RankEnvironment.of(System.getenv());
        return new Ranks(environment.count(), CommunicatorConfig.standard(), environment, "");
    }

    /**
     * Returns ranks that are processes which a program has started, of which this process is one. In a run, rank 0 listens at a free port
     * of its host and makes a secret; {@link ProcessGroup#allGather} sends both to the others. Each run has another port and another
     * secret.
     *
     * @throws IllegalArgumentException when the group names no host, a rank that is none of theirs, or a negative device
     */
    public static Ranks ofProcesses(ProcessGroup group) {
        Rendezvous meeting = Rendezvous.of(group);
        return new Ranks(meeting.count(), CommunicatorConfig.standard(), meeting, "");
    }

    /** Returns whether {@code ./chagres launch} has started this process as one of several ranks. */
    public static boolean areLaunched() {
        return RankEnvironment.isLaunched(System.getenv());
    }

    /** Returns the rank that this process is; -1 if ranks are threads of it. */
    public int processRank() {
        return process == null ? -1 : process.rank();
    }

    /** Returns the index of this process's device among those of its host; -1 if ranks are threads of it. */
    public int processDevice() {
        return process == null ? -1 : process.localRank();
    }

    /**
     * Returns the same ranks with a text that describes what they run. Ranks in different processes compare it first, and refuse to run
     * when it differs: put everything that must be the same into it, one item a line, since the error names the lines that differ.
     *
     * @param newWhat at most 32,768 bytes in UTF-8
     * @throws IllegalArgumentException when it is longer, or has half a surrogate pair
     */
    public Ranks withPurpose(String newWhat) {
        if (!StandardCharsets.UTF_8.newEncoder().canEncode(Checks.given("newWhat", newWhat))) {
            throw new IllegalArgumentException(
                    "newWhat: expected a text that UTF-8 can hold, got one with half a surrogate pair");
        }
        int byteSize = newWhat.getBytes(StandardCharsets.UTF_8).length;
        if (byteSize > LONGEST_PURPOSE) {
            throw new IllegalArgumentException("newWhat: expected at most " + LONGEST_PURPOSE + " bytes in UTF-8, got "
                    + byteSize + "; say a hash of what is long");
        }
        return new Ranks(count, config, process, newWhat);
    }

    /** Returns the same ranks with another configuration of their communicator. */
    public Ranks withConfig(CommunicatorConfig newConfig) {
        return new Ranks(count, Checks.given("newConfig", newConfig), process, what);
    }

    /** Returns N. */
    public int count() {
        return count;
    }

    /**
     * Runs {@code body} once on each rank and waits for all. If ranks are processes, each of them calls this, and the body runs on the
     * calling thread.
     *
     * @param <T> a rank's result, which may be null
     * @return the results by rank, except those of ranks that the others have excluded by an {@link dev.chagres.nccl.Agreement}; if ranks
     *     are processes, only the result of this one
     * @throws RankFailedException when a rank throws (its exception is the cause), does not call a collective, or its process ends, and the
     *     others do not go on without it
     * @throws IllegalStateException if ranks are processes: when one does not connect within the timeout, connects twice, or has another
     *     purpose; the text names it
     */
    public <T> List<T> run(Rank.Body<T> body) {
        Checks.given("body", body);
        if (process != null) {
            return Collections.singletonList(ProcessRun.result(process, what, config, body));
        }
        LocalRun<T> run = new LocalRun<>(count, config, UniqueId.create(), body);
        return run.results();
    }

    /**
     * Runs {@code body}, which has no result, once on each rank and waits for all.
     *
     * @throws RankFailedException as {@link #run}
     * @throws IllegalStateException as {@link #run}
     */
    public void each(Action body) {
        Checks.given("body", body);
        run(rank -> {
            body.run(rank);
            return rank.index();
        });
    }

    /** Returns the number of ranks. */
    @Override
    public String toString() {
        return process == null
                ? count + (count == 1 ? " rank" : " ranks") + " of this process"
                : "rank " + process.rank() + " of " + count + " processes";
    }

    /**
     * The work of each rank, without a result.
     *
     * <p>Threading: called on each rank's thread at the same time.
     */
    public interface Action {
        /**
         * Does the work of {@code rank}.
         *
         * @throws Exception to make the run fail
         */
        void run(Rank rank) throws Exception;
    }
}
