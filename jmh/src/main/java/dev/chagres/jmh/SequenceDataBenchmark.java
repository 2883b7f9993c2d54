package dev.chagres.jmh;

import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.SequencePacker;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * How fast are sequences packed into the batch of a step? It must be faster than a training step.
 *
 * <p>The batch has 16,384 tokens, in one micro-batch or in four. The sequences are synthetic: lengths like those of proteins, half of them
 * below 300 and one in twenty longer than the context, tokens and labels by a simple rule.
 */
@NullUnmarked
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
@Fork(1)
public class SequenceDataBenchmark {
    private static final int TOKENS = 16_384;
    private static final int CONTEXT = 1_024;

    /** How many micro-batches the batch has. */
    @Param({"1", "4"})
    public int microBatches;

    private SequencePacker packer;
    private Batch batch;

    /** Checks that a batch is nearly full, and that its labels are those of the rule. */
    @Setup
    public void prepare() {
        var shape = new BatchShape(BatchLayout.PACKED, TOKENS, CONTEXT, microBatches);
        packer = new SequencePacker(shape, new SyntheticProteins());
        batch = new Batch(shape);
        if (packBatch() < TOKENS - microBatches * CONTEXT) {
            throw new IllegalStateException("expected a nearly full batch, got " + batch.tokens() + " tokens");
        }
        int labelled = batch.labelled() * SyntheticProteins.LABEL_EVERY;
        if (Math.abs(labelled - batch.tokens()) > batch.tokens() / 10) {
            throw new IllegalStateException("expected a label on every " + SyntheticProteins.LABEL_EVERY + "th of "
                    + batch.tokens() + " tokens, got " + batch.labelled());
        }
    }

    /** One batch: the number of its tokens. */
    @Benchmark
    public int packBatch() {
        if (!packer.fill(batch)) {
            throw new IllegalStateException("expected sequences without end");
        }
        return batch.tokens();
    }

    /** Closes the sequences. */
    @TearDown
    public void close() {
        packer.close();
    }
}
