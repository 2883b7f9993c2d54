package dev.chagres.trainer.plan;

import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.trainer.StepEstimate;
import dev.chagres.trainer.command.EnumOption;
import dev.chagres.trainer.command.ProgressLine;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Counts ways to train a model: memory by the program's own calls, on devices that count, and time by {@link StepTime}.
 *
 * <p>Threading: one thread at a time.
 *
 * @param memory bytes of a GPU
 * @param linkBytes what a collective moves in a second
 * @param meanLength of sequences, in tokens
 * @param all also those that do not fit, and more micro-batches than necessary
 */
record CountedWays(Choice.Steps steps, double memory, double linkBytes, double meanLength, boolean all) {
    private static final double GIB = 1L << 30;
    private static final double CONTEXT = 0.6 * GIB;
    private static final double NCCL = 0.5 * GIB;
    private static final int MOST_ACCUMULATED = 16;

    /**
     * What is known of a choice.
     *
     * @param bytes that the GPU which holds most holds
     */
    record Row(Choice choice, StepEstimate estimate, double bytes, StepTime time, double tokensPerSecond) {}

    /** Returns those that fit, or all. */
    List<Row> count(List<Choice.Updates> optimizers, ProgressLine progress) {
        List<Row> rows = new ArrayList<>();
        Set<Recomputation> compared = EnumSet.of(
                Recomputation.NONE, steps.model().usualRecomputation(), Recomputation.NORMS, Recomputation.LAYERS);
        for (Choice.Updates updates : optimizers) {
            for (Choice.Strategy strategy : Choice.Strategy.values()) {
                for (Recomputation recompute : compared) {
                    progress.at(() -> "plan: counted " + rows.size() + " ways, now " + updates + ", " + strategy
                            + (recompute == Recomputation.NONE ? "" : ", recomputing " + EnumOption.word(recompute)));
                    rows.addAll(counted(new Choice(strategy, 1, recompute, updates)));
                }
            }
        }
        return rows;
    }

    /** Those of more and more micro-batches, and where layers are recomputed those with inputs in the host's memory. */
    private List<Row> counted(Choice ofOne) {
        List<Row> rows = new ArrayList<>();
        boolean more = all || ofOne.strategy() == Choice.Strategy.PP;
        boolean offloads = ofOne.recompute() == Recomputation.LAYERS;
        for (int accumulate = 1; accumulate <= MOST_ACCUMULATED; accumulate *= 2) {
            Choice choice = ofOne.with(accumulate);
            if (!choice.isPossible(steps)) {
                break;
            }
            Row row = row(choice);
            if (all || fits(row)) {
                rows.add(row);
            }
            if (offloads && (all || !fits(row))) {
                Row offloaded = offloaded(row);
                if (offloaded != null && (all || fits(offloaded))) {
                    rows.add(offloaded);
                    offloads = more;
                }
            }
            if (fits(row) && !more) {
                break; // more micro-batches would be smaller ones; those of a pipeline wait less for each other
            }
        }
        return rows;
    }

    /** Returns whether the memory of a GPU has room for it. */
    boolean fits(Row row) {
        return row.bytes <= memory;
    }

    /** Returns the same with the inputs of as few layers in the host's memory as let it fit, or else of all; null where none would be copied. */
    private @Nullable Row offloaded(Row onDevice) {
        Row offloaded = row(onDevice.choice.with(ActivationOffload.all()));
        StepTime.Copies copies = offloaded.choice.copies(steps);
        if (copies.inputs() == 0) {
            return null;
        }
        double input = (onDevice.bytes - offloaded.bytes) / copies.inputs();
        int left = input > 0 && !fits(onDevice) ? (int) ((memory - offloaded.bytes) / input) : 0;
        if (left <= 0) {
            return offloaded;
        }
        Row fewer = row(onDevice.choice.with(new ActivationOffload(copies.layers() - left)));
        return fits(fewer) ? fewer : offloaded;
    }

    private Row row(Choice choice) {
        StepEstimate estimate = choice.trainer(steps).estimate();
        var division = new StepTime.Division(
                steps.gpus(),
                choice.strategy(),
                choice.accumulate(),
                linkBytes,
                meanLength,
                steps.context(),
                choice.copies(steps));
        StepTime time = StepTime.of(
                steps.model(),
                choice.recompute(),
                estimate,
                steps.recipe().quantizedWeight().isPresent(),
                choice.updateBytes(steps.model().weights(), steps.gpus()),
                division);
        double bytes = estimate.memoryBytes() + besides();
        return new Row(choice, estimate, bytes, time, steps.tokens() / time.seconds());
    }

    /** Returns the bytes that CUDA's context and libraries take, and NCCL's buffers on several GPUs. */
    double besides() {
        return steps.gpus() > 1 ? CONTEXT + NCCL : CONTEXT;
    }
}
