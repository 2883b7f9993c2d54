package dev.chagres.trainer;

import dev.chagres.Tensor;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.StepReadback;
import dev.chagres.batch.TrainedModel;
import dev.chagres.batch.UploadRing;
import dev.chagres.optim.LossScaler;
import dev.chagres.pass.Pass;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Forward and backward of the micro-batches of a step that are a rank's own, and the sums of their gradients over ranks.
 *
 * <p>Threading: the device's thread.
 */
final class StepGradients {
    private final TrainedModel model;
    private final Pass pass;
    private final RankShare ranks;
    /** Null where the loss is not scaled. */
    private final @Nullable LossScaler lossScaler;

    StepGradients(TrainedModel model, Pass pass, RankShare ranks, @Nullable LossScaler lossScaler) {
        this.model = model;
        this.pass = pass;
        this.ranks = ranks;
        this.lossScaler = lossScaler;
    }

    /**
     * Enqueues those of the batch that was uploaded first.
     *
     * @param losses is given the loss of each own micro-batch; null where the gradients are not those of a step
     */
    void compute(UploadRing uploads, @Nullable StepReadback losses) {
        PipelineGradients pipeline = ranks.pipeline();
        if (pipeline == null) {
            computeWhole(uploads, losses);
        } else {
            pipeline.compute(uploads, ranks, lossScaler, losses);
        }
        ranks.sumGradients();
    }

    private void computeWhole(UploadRing uploads, @Nullable StepReadback losses) {
        ModelInput input;
        int microBatch = 0;
        do {
            pass.begin();
            input = uploads.next(pass.scope());
            boolean own = ranks.isOwn(microBatch);
            boolean helps = ranks.helps(microBatch, input);
            if (losses != null && (own || helps)) {
                ranks.announce(microBatch, input);
            }
            if (own) {
                Tensor loss = forwardAndBackward(input, input.share());
                if (losses != null) {
                    losses.addLoss(loss, input.share());
                }
            } else if (helps) {
                forwardAndBackward(input, 0);
            }
            microBatch++;
        } while (!input.isLast());
    }

    /** Enqueues those of a step that a graph holds, whose shares of the loss change from launch to launch. */
    void compute(List<ModelInput> microBatches, CapturedSteps steps) {
        for (int i = 0; i < microBatches.size(); i++) {
            ModelInput input = microBatches.get(i);
            pass.begin();
            if (ranks.isOwn(i)) {
                ranks.announce(i, input);
                steps.keep(i, forwardAndBackwardCaptured(input, steps));
            } else if (ranks.helps(i, input)) {
                forwardAndBackward(input, 0);
            }
        }
        ranks.sumGradients();
    }

    private Tensor forwardAndBackwardCaptured(ModelInput input, CapturedSteps steps) {
        if (steps.haveOneMicroBatch()) {
            return forwardAndBackward(input, input.share());
        }
        Tensor share = lossScaler == null ? input.deviceShare() : input.deviceShare(lossScaler, pass);
        return forwardAndBackward(input, 1, share);
    }

    /** Enqueues forward and backward of a micro-batch and returns its loss, the mean over its own labelled tokens. */
    private Tensor forwardAndBackward(ModelInput input, double share) {
        return forwardAndBackward(input, share, lossScaler == null ? null : lossScaler.scale());
    }

    /** The same with gradients multiplied by {@code scale}, FLOAT32 [1], too. */
    private Tensor forwardAndBackward(ModelInput input, double share, @Nullable Tensor scale) {
        pass.sequences(input.sequences());
        Tensor loss = model.loss(input, pass);
        model.backward((float) share, scale, pass);
        return loss;
    }
}
