package dev.chagres.trainer.callback;

import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.TokenSequences;
import dev.chagres.trainer.Callback;
import dev.chagres.trainer.TrainingRun;
import java.util.Locale;
import java.util.function.Supplier;

/**
 * Computes the mean loss of held-out data after every so many steps, and at the end of a run that was not stopped and has not failed. It
 * changes nothing that later steps follow from.
 *
 * {@snippet file="dev/chagres/trainer/callback/EvaluationTest.java" region="evaluation"}
 *
 * <p>Micro-batches hold the same sequences on every number of ranks: then ranks compute the same sums, apart from rounding.
 *
 * <p>Threading: confined to the thread that trains, one run at a time.
 */
public final class Evaluation implements Callback {
    private final Supplier<? extends TokenSequences> data;
    private final BatchShape microBatch;
    private final int every;
    private int evaluated = -1;

    private Evaluation(Supplier<? extends TokenSequences> data, BatchShape microBatch, int every) {
        this.data = data;
        this.microBatch = microBatch;
        this.every = every;
    }

    /**
     * What an evaluation has found.
     *
     * <p>Threading: immutable.
     *
     * @param step after how many steps of training, those of earlier runs included
     * @param loss the mean cross-entropy of all labelled tokens, in nats
     * @param accuracy which part of the labelled tokens has the largest score at its label, of equal scores at the first; NaN where the
     *     model tells no scores
     * @param labelled tokens
     * @param sequences that were evaluated
     * @param seconds it took
     */
    public record Result(int step, double loss, double accuracy, long labelled, long sequences, double seconds) {
        /** Returns {@code exp(loss)}: among how many equally likely tokens the model chooses. */
        public double perplexity() {
            return Math.exp(loss);
        }

        /** Returns loss, perplexity and accuracy as one says them. */
        @Override
        public String toString() {
            return String.format(Locale.ROOT, "loss %.4f, perplexity %.3f", loss, perplexity())
                    + (Double.isNaN(accuracy) ? "" : String.format(Locale.ROOT, ", accuracy %.2f %%", 100 * accuracy));
        }
    }

    /**
     * Makes one that evaluates at the end of a run.
     *
     * @param data opens the sequences, from the first one on and the same each time; what it writes for a sequence depends on that alone
     * @param microBatch the most that goes through the model at once
     * @throws IllegalArgumentException when the shape has several micro-batches: ranks take as many as there are of them
     */
    public static Evaluation of(Supplier<? extends TokenSequences> data, BatchShape microBatch) {
        if (microBatch.microBatches() != 1) {
            throw new IllegalArgumentException("microBatch: expected the shape of one, got one of "
                    + microBatch.microBatches() + " micro-batches");
        }
        return new Evaluation(data, microBatch, 0);
    }

    /**
     * Returns the same that also evaluates after each step whose number divides by {@code steps}.
     *
     * @param steps 0 for the end alone
     * @throws IllegalArgumentException when it is negative
     */
    public Evaluation withEvery(int steps) {
        if (steps < 0) {
            throw new IllegalArgumentException("steps: expected 0 or more, got " + steps);
        }
        return new Evaluation(data, microBatch, steps);
    }

    /** Returns a fresh opening of the sequences. */
    public TokenSequences open() {
        return data.get();
    }

    /** Returns the most that goes through the model at once. */
    public BatchShape microBatch() {
        return microBatch;
    }

    /**
     * Reads the data once, before a run that would meet it late.
     *
     * @return how many sequences there are
     * @throws IllegalArgumentException when there is no sequence, or none has a labelled token
     * @throws RuntimeException what reading the data throws
     */
    public long check() {
        long sequences = 0;
        long labelled = 0;
        var batch = new Batch(microBatch);
        try (var packer = new SequencePacker(microBatch, open())) {
            while (packer.fill(batch)) {
                sequences += batch.microBatch(0).realSequences();
                labelled += batch.labelled();
            }
        }
        if (labelled == 0) {
            throw new IllegalArgumentException("evaluation: expected data with labelled tokens, got "
                    + (sequences == 0 ? "no sequence" : sequences + " sequences without any"));
        }
        return sequences;
    }

    @Override
    public boolean isDue(int steps) {
        return every != 0 && steps % every == 0;
    }

    @Override
    public boolean isDueAtEnd() {
        return true;
    }

    @Override
    public void onCheckpoint(TrainingRun run) {
        if (evaluated != run.steps()) {
            evaluated = run.steps();
            run.evaluate(this);
        }
    }

    @Override
    public void onEnd(TrainingRun run) {
        evaluated = -1;
    }

    /** Returns when it evaluates, and the shape of its micro-batches. */
    @Override
    public String toString() {
        return "evaluation " + (every == 0 ? "" : "every " + every + " steps and ") + "at the end, of " + microBatch;
    }
}
