package dev.chagres.sharding;

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
 * Runs one body on several ranks, threads of this program or processes, each with its device and its end of a communicator.
 *
 * <p>A rank that throws releases the others from whatever collective they wait in, and {@link #run} throws a {@link
 * RankFailedException} that names it. A rank that does not come to a collective within the configured timeout counts as failed.
 *
 * {@snippet file="dev/chagres/sharding/CollectivesExampleTest.java" region="ranks"}
 *
 * <p>Threading: immutable; {@link #run} may be called from any thread, one call at a time for the same devices.
 */
public final class Ranks {
    /** What ranks say when they come, of which this is a part, has 64 KiB. */
    private static final int LONGEST_PURPOSE = 1 << 15;

    private final int count;
    private final CommunicatorConfig config;
    /** Null where ranks are threads of this program. */
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
     * Returns ranks that are processes, of which this one is one: {@code ./chagres launch}, torchrun, Slurm, Open MPI or a Kubernetes
     * indexed job has started it, and its variables say which. Ranks meet at {@code CHAGRES_STORE_ADDRESS} and {@code CHAGRES_STORE_PORT},
     * where rank 0 listens, and share the secret of {@code CHAGRES_STORE_SECRET} or of the file that {@code CHAGRES_STORE_SECRET_FILE} names.
     *
     * @throws IllegalArgumentException when a variable is absent or has no usable value; the text names it
     */
    public static Ranks fromEnvironment() {
        RankEnvironment environment = RankEnvironment.of(System.getenv());
        return new Ranks(environment.count(), CommunicatorConfig.standard(), environment, "");
    }

    /**
     * Returns ranks that are processes which a program has started, of which this one is one. When they run, rank 0 listens at its host, at
     * a port that is free, and makes a secret; {@link ProcessGroup#allGather} tells them to the others. Each run has another port and
     * another secret.
     *
     * @throws IllegalArgumentException when the group names no host, a rank that is none of theirs, or a negative device
     */
    public static Ranks ofProcesses(ProcessGroup group) {
        RankMeeting meeting = RankMeeting.of(group);
        return new Ranks(meeting.count(), CommunicatorConfig.standard(), meeting, "");
    }

    /** Returns whether {@code ./chagres launch} has started this process as one of several ranks. */
    public static boolean areLaunched() {
        return RankEnvironment.isLaunched(System.getenv());
    }

    /** Returns the rank that this process is; -1 where ranks are threads of it. */
    public int processRank() {
        return process == null ? -1 : process.rank();
    }

    /** Returns which device is this process's, counted among those of its host; -1 where ranks are threads of it. */
    public int processDevice() {
        return process == null ? -1 : process.localRank();
    }

    /**
     * Returns the same ranks with a word for what they do. Ranks in processes of their own compare it first, and refuse to run when it
     * differs: say everything that must be the same, a line each, for the error names the lines that differ.
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
     * Runs {@code body} once on each rank and waits for all. Where ranks are processes, each calls this, and its body runs on the calling
     * thread.
     *
     * @param <T> a rank's result, which may be null
     * @return the results by rank, without those of ranks that the others went on without by an {@link dev.chagres.nccl.Agreement};
     *     where ranks are processes, that of this one alone
     * @throws RankFailedException when a rank throws, with what it threw as cause, does not come to a collective, or its process ends, and
     *     the others do not go on without it
     * @throws IllegalStateException where ranks are processes: when one does not come within the timeout, comes twice, or does something
     *     else; the text names it
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
     * Runs {@code body} once on each rank and waits for all, where there is no result.
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
     * What each rank does, without a result.
     *
     * <p>Threading: called on each rank's thread at the same time.
     */
    public interface Action {
        /**
         * Does the work of {@code rank}.
         *
         * @throws Exception what the run is to fail with
         */
        void run(Rank rank) throws Exception;
    }
}
