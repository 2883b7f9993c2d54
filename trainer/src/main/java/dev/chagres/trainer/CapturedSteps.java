package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.StepGraph;
import dev.chagres.batch.StepReadback;
import dev.chagres.batch.UploadRing;
import dev.chagres.pass.Pass;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntPredicate;

/**
 * Steps that are captured once for each bucket of batches and replayed, and the losses that they leave.
 *
 * <p>Threading: the device's thread.
 */
final class CapturedSteps implements AutoCloseable {
    /** Graphs that are kept at a time. */
    private static final int BUCKETS = 16;

    private final Scope scope;
    /** By micro-batch, as far as it is this rank's. */
    private final List<Tensor> losses = new ArrayList<>();

    private final UploadRing uploads;
    private final StepGraph graph;

    /**
     * Makes room for losses and batches.
     *
     * @param uploads batches under way at a time
     * @param padding the id of padding tokens
     * @param step enqueues a step of these micro-batches, and calls {@link #keep} for each that it computes
     */
    CapturedSteps(Device device, BatchShape shape, int uploads, int padding, Pass pass, StepGraph.Step step) {
        scope = device.openScope();
        for (int i = 0; i < shape.microBatches(); i++) {
            losses.add(scope.tensor(DType.FLOAT32, 1));
        }
        this.uploads = UploadRing.padded(device, shape, uploads, padding);
        graph = new StepGraph(this.uploads, shape, pass, BUCKETS, step);
    }

    /** Returns where batches are uploaded. */
    UploadRing uploads() {
        return uploads;
    }

    /** Returns whether every step has one micro-batch, whose share of the loss is then 1. */
    boolean haveOneMicroBatch() {
        return losses.size() == 1;
    }

    /** Enqueues a copy of a micro-batch's loss to where it stays until the step's result is read. */
    void keep(int microBatch, Tensor loss) {
        losses.get(microBatch).copyFrom(scope.stream(), loss);
    }

    /** Makes the step of the batch that was uploaded first, and hands its losses on. */
    void step(IntPredicate own, StepReadback readback) {
        List<ModelInput> microBatches = graph.step();
        for (int i = 0; i < microBatches.size(); i++) {
            if (own.test(i)) {
                readback.addLoss(losses.get(i), microBatches.get(i).share());
            }
        }
    }

    /** Returns how many steps were replayed, and why the others were not. */
    String explain() {
        return graph.explain();
    }

    @Override
    public void close() {
        graph.close();
        uploads.close();
        scope.close();
    }
}
