package dev.chagres.trainer.plan;

import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.nccl.Operation;
import dev.chagres.trainer.StepEstimate;
import java.util.Map;

/**
 * The time of a step on H200 GPUs, predicted from its counted operations and bytes. The rates were measured, and fit to what whole steps took:
 * docs/planning.md has both.
 *
 * <p>Threading: immutable.
 *
 * @param products seconds of matrix products
 * @param attention seconds of attention
 * @param elementwise seconds of norms, activations, residual sums and casts, which wait for memory
 * @param copies seconds by which copies of layers' inputs to the host's memory and back are longer than the layers beside them
 * @param update seconds of the optimizer and the gradients' norm
 * @param communication seconds of collectives that nothing hides, and in which stages of a pipeline wait for others
 */
record StepTime(
        double products, double attention, double elementwise, double copies, double update, double communication) {
    /** Bytes a second that kernels read and write. */
    private static final double MEMORY = 4.3e12;
    /** The share of it that the optimizer reaches. */
    private static final double UPDATE_SHARE = 0.9;
    /** Bytes a second of the link to the host's memory, each way. */
    private static final double HOST_LINK = 50e9;
    /** The share of a layer's time that forward takes, where backward recomputes it: the rest is backward's. */
    private static final double FORWARD = 0.25;
    /** Tensors [tokens, hidden] that a layer reads and writes outside of products and attention, forward and backward. */
    private static final double TENSORS = 51;

    private static final double TENSORS_QUANTIZED = 80;
    /** Kernels that are too short to fill the GPU, of a layer. */
    private static final double LAYER_SECONDS = 2e-4;
    /** The share that ranks which split layers have of them: norms are of all columns on each. */
    private static final double OF_SPLIT_LAYERS = 0.6;
    /** How much longer kernels take on a GPU of several. */
    private static final double AMONG_RANKS = 1.08;
    /** The share of a step in which collectives of data-parallel ranks can hide. */
    private static final double HIDING = 0.5;

    /**
     * How a step is divided.
     *
     * @param strategy what ranks split or shard
     * @param microBatches of a rank
     */
    record Division(
            int ranks,
            Choice.Strategy strategy,
            int microBatches,
            double linkBytes,
            double meanLength,
            int context,
            Copies copies) {
        boolean splitsLayers() {
            return strategy == Choice.Strategy.TP;
        }

        /** Returns by how much a stage's time grows while it waits for micro-batches of others: (p - 1) / m. */
        double bubble() {
            return strategy == Choice.Strategy.PP ? (ranks - 1.0) / microBatches : 0;
        }
    }

    /**
     * What a rank copies in a micro-batch to the host's memory, and back.
     *
     * @param layers that the rank has
     * @param inputs of layers that are copied
     * @param bytes of an input
     */
    record Copies(int layers, int inputs, double bytes) {
        /** Returns the seconds that copies take longer than the layers beside them, and those in which they keep the device's memory busy. */
        double exposed(double computeSeconds) {
            double layer = computeSeconds / layers;
            double copy = bytes / HOST_LINK;
            double waits = Math.max(0, copy - FORWARD * layer) + Math.max(0, copy - (1 - FORWARD) * layer);
            return inputs * (waits + 2 * bytes / MEMORY);
        }
    }

    static StepTime of(
            PlannedModel model,
            Recomputation recompute,
            StepEstimate step,
            boolean quantized,
            double updateBytes,
            Division division) {
        double hidden = model.hidden();
        double among = division.ranks == 1 ? 1 : AMONG_RANKS;
        double products = step.productFlops().getOrDefault(16, 0.0) / (720e12 * hidden / (hidden + 400))
                + step.productFlops().getOrDefault(8, 0.0) / (1450e12 * hidden / (hidden + 650))
                + step.productFlops().getOrDefault(32, 0.0) / (330e12 * hidden / (hidden + 400));
        double attention = step.attentionFlops()
                * (division.meanLength / division.context)
                / (Math.min(620, 6.0 * model.headDim()) * 1e12);
        double share = division.splitsLayers() ? OF_SPLIT_LAYERS : 1.0 / division.ranks;
        double ownTokens = step.tokens() * share;
        double tensors = (quantized ? TENSORS_QUANTIZED : TENSORS) - kept(model, recompute);
        double elementwise =
                tensors * ownTokens * hidden * 2 * model.layers() / MEMORY + model.layers() * LAYER_SECONDS;
        double update = updateBytes / (MEMORY * UPDATE_SHARE);
        double compute = among * (products + attention + elementwise);
        double copies = division.microBatches * division.copies.exposed(compute / division.microBatches);
        double moved = moved(step.collectiveBytes(), division.ranks) / division.linkBytes;
        double exposed = division.strategy.sharesMicroBatches()
                ? moved + division.bubble() * (compute + copies)
                : Math.max(0.03 * moved, moved - HIDING * compute);
        return new StepTime(among * products, among * attention, among * elementwise, copies, update, exposed);
    }

    /** Returns the tensors that a layer which keeps its activation's output need not read and write, where such models usually recompute it. */
    private static double kept(PlannedModel model, Recomputation recompute) {
        return recompute == Recomputation.NONE && model.usualRecomputation() == Recomputation.ACTIVATION
                ? 2.0 * model.inner() / model.hidden()
                : 0;
    }

    /** Bytes that a rank sends in rings. */
    private static double moved(Map<Operation, Long> bytes, int ranks) {
        double sum = 0;
        for (Map.Entry<Operation, Long> one : bytes.entrySet()) {
            if (one.getKey() == Operation.RECEIVE) {
                continue; // sent by another rank at the same time
            }
            double rounds = one.getKey() == Operation.ALL_REDUCE ? 2 : 1;
            sum += rounds * (ranks - 1) / ranks * one.getValue();
        }
        return sum;
    }

    double seconds() {
        return products + attention + elementwise + copies + update + communication;
    }
}
