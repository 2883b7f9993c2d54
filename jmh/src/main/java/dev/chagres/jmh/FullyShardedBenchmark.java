package dev.chagres.jmh;

import dev.chagres.sharding.Rank;
import dev.chagres.sharding.Ranks;
import dev.chagres.sharding.WeightGather;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
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
 * How long does a step of four transformer layers take whose weights, gradients and optimizer ranks share out, by the memory in which weights
 * are gathered? Forward and backward, gradients reduced in BF16, without the optimizer: a step's share of ten that are enqueued one after the
 * other, until all devices are done. Ranks are threads with a device each.
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

    /** Shape of the layers and of each rank's input. */
    @Param({"CPU"})
    public LayerShape shape;

    /** In what precision products are computed. */
    @Param({"BF16"})
    public LayerRecipe recipe;

    /** In which memory weights are gathered. */
    @Param({"DEVICE", "WINDOW", "COPY_ENGINE"})
    public WeightGather weightGather;

    private CyclicBarrier all;
    private Thread running;
    private volatile boolean ended;
    private volatile Throwable failure;

    /** For JMH. */
    public FullyShardedBenchmark() {}

    /** Starts the ranks, each of which checks its output, and prints how NCCL gathers. */
    @Setup
    public void start() {
        all = new CyclicBarrier(ranks + 1);
        running = Thread.ofPlatform().daemon().name("ranks").start(this::runRanks);
        meet();
    }

    private void runRanks() {
        try {
            Ranks.local(ranks).each(this::train);
        } catch (RuntimeException | Error failed) {
            failure = failed;
            all.reset();
        }
    }

    private void train(Rank rank) throws InterruptedException, BrokenBarrierException {
        try (ShardedLayers layers = new ShardedLayers(rank, shape, recipe, weightGather)) {
            if (rank.index() == 0) {
                System.out.println(layers);
            }
            all.await();
            while (true) {
                all.await();
                if (ended) {
                    return;
                }
                for (int i = 0; i < STEPS; i++) {
                    layers.run();
                }
                layers.await();
                all.await();
            }
        }
    }

    private void meet() {
        try {
            all.await();
        } catch (BrokenBarrierException | InterruptedException broken) {
            throw new IllegalStateException(
                    "expected ranks that train, got a failure", failure == null ? broken : failure);
        }
    }

    /** A step's share of the time until all devices are done with several. */
    @Benchmark
    @OperationsPerInvocation(STEPS)
    public void step() {
        meet();
        meet();
    }

    /** Ends the ranks. */
    @TearDown
    public void end() throws InterruptedException {
        ended = true;
        meet();
        running.join();
    }
}
