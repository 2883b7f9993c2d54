package dev.chagres.jmh;

import dev.chagres.jmh.states.LayerShape;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.sharding.GradientReduction;
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
 * How long does a step of four transformer layers with sharded weights and gradients take, by how weights are gathered and gradients
 * reduced, and how long without sharding? Forward and backward, gradients reduced in BF16, weights gathered anew in each step, without the optimizer:
 * the time of ten steps enqueued back to back, until all devices are done, divided by ten. Ranks are threads or processes
 * with a device each.
 *
 * <p>The efficiency of sharding is the time of {@link #alone} divided by that of {@link #sharded}, in one run with the same parameters.
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

    /** Number of ranks. */
    @NullUnmarked
    @State(Scope.Thread)
    public static class Sharded {
        /** In which memory weights are gathered. */
        @Param({"DEVICE", "COPY_ENGINE"})
        public WeightGather weightGather;

        /** How gradients are reduced. */
        @Param({"REDUCE_SCATTER", "COPY_ENGINE"})
        public GradientReduction gradientReduction;

        /** When weights are resharded. */
        @Param({"AFTER_FORWARD", "AFTER_STEP"})
        public Reshard reshard;

        /** What is gathered and reduced at a time. */
        @Param({"LAYER", "BRANCH", "BRANCH_AND_FIRST_NORMS"})
        public LayerGroups groups;

        /** Multiprocessors that norms leave to collectives. */
        @Param({"0"})
        public int normMargin;

        /** Multiprocessors that products leave to collectives. */
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
                    gradientReduction,
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

    /** Ranks that each have all layers. */
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

    /** The time of several steps until all devices are done, divided by their number. */
    @Benchmark
    @OperationsPerInvocation(STEPS)
    public void sharded(Sharded ranksThatShare) {
        ranksThatShare.team.step();
    }

    /** The same without sharding: all ranks compute all layers at once, independently of each other. */
    @Benchmark
    @OperationsPerInvocation(STEPS)
    public void alone(Alone ranksByThemselves) {
        ranksByThemselves.team.step();
    }

    /** What the ranks of a benchmark are. */
    public enum RankKind {
        /** Threads of the benchmark's process. */
        THREADS,
        /** Processes that the benchmark starts. */
        PROCESSES
    }

    /** What fully sharded transformer layers gather and reduce at a time. */
    public enum LayerGroups {
        /** A whole layer, as {@code fully_shard} of each layer does in PyTorch. */
        LAYER,
        /**
         * A layer's attention with its norms, then the products of its MLP: of these backward has all gradients before it comes to attention. It
         * computes the gradients of the MLP's norm after those of the MLP, as a part of the whole layer.
         */
        BRANCH,
        /**
         * As {@link #BRANCH}, but with the norms of the first layer apart: backward then has all gradients of that layer's attention before it computes
         * the last product, so they are reduced beside it.
         */
        BRANCH_AND_FIRST_NORMS;

        ModelPlan of(ModelPlan layers) {
            return this == LAYER ? layers : layers.regrouped(parameter -> kind(parameter.name()));
        }

        private String kind(String name) {
            if (this == BRANCH_AND_FIRST_NORMS && name.startsWith("layers.0.") && name.contains("norm")) {
                return "norms";
            }
            return isOfMlp(name) ? "mlp" : "attention";
        }

        private static boolean isOfMlp(String name) {
            return name.contains(".mlp.") && !name.contains("norm");
        }
    }
}
