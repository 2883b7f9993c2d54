package dev.chagres.sharding;

import dev.chagres.Device;
import dev.chagres.internal.Checks;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.UniqueId;
import java.util.List;

/**
 * Runs one body on several ranks: threads of this program, each with its device and its end of a communicator.
 *
 * <p>A rank that throws releases the others from whatever collective they wait in, and {@link #run} throws a {@link
 * RankFailedException} that names it. A rank that does not come to a collective within the configured timeout counts as failed.
 *
 * {@snippet file="dev/chagres/sharding/CollectivesExampleTest.java" region="ranks"}
 *
 * <p>Threading: immutable; {@link #run} may be called from any thread, one call at a time for the same devices.
 */
public final class Ranks {
    private final int count;
    private final CommunicatorConfig config;

    private Ranks(int count, CommunicatorConfig config) {
        this.count = count;
        this.config = config;
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
        return new Ranks(count, CommunicatorConfig.standard());
    }

    /** Returns the same ranks with another configuration of their communicator. */
    public Ranks withConfig(CommunicatorConfig newConfig) {
        return new Ranks(count, Checks.given("newConfig", newConfig));
    }

    /** Returns N. */
    public int count() {
        return count;
    }

    /**
     * Runs {@code body} once on each rank and waits for all.
     *
     * @param <T> a rank's result
     * @return the results by rank
     * @throws RankFailedException when a rank throws, with what it threw as cause, or does not come to a collective
     */
    public <T> List<T> run(Rank.Body<T> body) {
        Checks.given("body", body);
        LocalRun<T> run = new LocalRun<>(count, config, UniqueId.create(), body);
        return run.results();
    }

    /**
     * Runs {@code body} once on each rank and waits for all, where there is no result.
     *
     * @throws RankFailedException as {@link #run}
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
        return count + (count == 1 ? " rank" : " ranks") + " of this process";
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
