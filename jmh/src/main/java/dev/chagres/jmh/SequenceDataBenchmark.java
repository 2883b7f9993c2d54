package dev.chagres.jmh;

import dev.chagres.samples.data.Batch;
import dev.chagres.samples.data.BatchLayout;
import dev.chagres.samples.data.BatchShape;
import dev.chagres.samples.data.FastaReader;
import dev.chagres.samples.data.FastaSource;
import dev.chagres.samples.data.SequencePacker;
import dev.chagres.samples.data.ShuffledSequences;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * How fast do sequences come: out of a FASTA file, and masked and packed into batches?
 *
 * <p>{@code readFasta} times one pass over the shipped, compressed file; {@code packBatch} the filling of one batch of 16,384
 * tokens, which a step of training must not outrun.
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
    private static final int WINDOW = 1 << 24;

    private final FastaSource source = FastaSource.shipped();
    private final BatchShape shape = new BatchShape(BatchLayout.PACKED, TOKENS, CONTEXT);
    private SequencePacker packer;
    private Batch batch;
    private long residues;

    /** Checks that two passes read the same number of residues, and that a batch is nearly full. */
    @Setup
    public void prepare() {
        residues = readFasta();
        if (residues == 0 || readFasta() != residues) {
            throw new IllegalStateException("expected the same residues twice, got " + residues);
        }
        packer = new SequencePacker(shape, new ShuffledSequences(source, 1, WINDOW));
        batch = new Batch(shape);
        if (packBatch() < TOKENS - CONTEXT) {
            throw new IllegalStateException("expected a nearly full batch, got " + batch.tokens() + " tokens");
        }
    }

    /** One pass over the file: the number of residues. */
    @Benchmark
    public long readFasta() {
        long count = 0;
        try (FastaReader reader = source.open()) {
            while (reader.advance()) {
                count += reader.length();
            }
        }
        return count;
    }

    /** One batch: the number of its tokens. */
    @Benchmark
    public int packBatch() {
        if (!packer.fill(batch)) {
            throw new IllegalStateException("expected sequences without end");
        }
        return batch.tokens();
    }

    /** Closes the file. */
    @TearDown
    public void close() {
        packer.close();
    }
}
