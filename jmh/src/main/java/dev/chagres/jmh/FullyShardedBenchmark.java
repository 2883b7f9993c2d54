package dev.chagres.jmh;

import dev.chagres.sharding.Reshard;
import dev.chagres.sharding.WeightGather;
import java.io.IOException;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * How long does a step of four transformer layers take whose weights and gradients ranks share out, by the memory in which weights are
 * gathered, and how long without sharing? Forward and backward, gradients reduced in BF16, weights gathered anew in each step, without the
 * optimizer: a step's share of ten that are enqueued one after the other, until all devices are done. Ranks are threads or processes with a
 * device each.
 *
 * <p>The efficiency of sharing is the time of {@link #alone} divided by that of {@link #sharded}, of one run with the same parameters.
 */
@NullUnmarked
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Warmup(iterations = 3, time = 2)
@Measurement(iterations = 5, time = 2)
@Fork(value = 1, jvmArgsAppend = "--enable-native-access=ALL-UNNAMED")
public class FullyShardedBenchmark {
    private static final int STEPS = 10;

    /** How many ranks. */
    @Param({"2"})
    public int ranks;

    /** What ranks are: threads or processes, with a device each. */
    @Param({"THREADS"})
    public RankKind rankKind;

    /** Shape of the layers and of each rank's input. */
    @Param({"CPU"})
    public LayerShape shape;

    /** In what precision products are computed. */
    @Param({"BF16"})
    public LayerRecipe recipe;

    /** For JMH. */
    public FullyShardedBenchmark() {}

    /** Ranks that share the layers out. */
    @NullUnmarked
    @State(Scope.Thread)
    public static class Sharded {
        /** In which memory weights are gathered. */
        @Param({"DEVICE", "WINDOW", "COPY_ENGINE"})
        public WeightGather weightGather;

        /** When ranks give weights back. */
        @Param({"AFTER_FORWARD", "AFTER_STEP"})
        public Reshard reshard;

        /** What is gathered and summed at a time. */
        @Param({"LAYER", "BRANCH"})
        public LayerGroups groups;

        /** Multiprocessors that norms leave to collectives. */
        @Param({"0"})
        public int normMargin;

        /** Multiprocessors that products leave to them. */
        @Param({"0"})
        public int productMargin;

        private LayerTeam team;

        /** For JMH. */
        public Sharded() {}

        /** Starts the ranks, each of which checks its output, and prints how NCCL gathers. */
        @Setup
        public void start(FullyShardedBenchmark benchmark) throws IOException {
            LayerSetup setup = new LayerSetup(
                    LayerSetup.Kind.SHARDED,
                    benchmark.shape,
                    benchmark.recipe,
                    weightGather,
                    reshard,
                    groups,
                    normMargin,
                    productMargin);
            team = LayerTeam.start(benchmark.rankKind, benchmark.ranks, STEPS, setup);
        }

        /** Ends the ranks. */
        @TearDown
        public void end() throws InterruptedException {
            team.end();
        }
    }

    /** Ranks each of which has all layers. */
    @NullUnmarked
    @State(Scope.Thread)
    public static class Alone {
        private LayerTeam team;

        /** For JMH. */
        public Alone() {}

        /** Starts the ranks, each of which checks its output. */
        @Setup
        public void start(FullyShardedBenchmark benchmark) throws IOException {
            LayerSetup setup = LayerSetup.alone(benchmark.shape, benchmark.recipe);
            team = LayerTeam.start(benchmark.rankKind, benchmark.ranks, STEPS, setup);
        }

        /** Ends the ranks. */
        @TearDown
        public void end() throws InterruptedException {
            team.end();
        }
    }

    /** A step's share of the time until all devices are done with several. */
    @Benchmark
    @OperationsPerInvocation(STEPS)
    public void sharded(Sharded ranksThatShare) {
        ranksThatShare.team.step();
    }

    /** The same where each rank has all layers, computes by itself, and all do so at once. */
    @Benchmark
    @OperationsPerInvocation(STEPS)
    public void alone(Alone ranksByThemselves) {
        ranksByThemselves.team.step();
    }
}
