package dev.chagres.spark;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.StepReadback;
import dev.chagres.batch.StepResult;
import dev.chagres.batch.UploadRing;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Rank;
import dev.chagres.layer.Pass;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.sharding.Strategy;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;

/**
 * What one rank does: ESM-2 with AdamW, trained on the sequences that an iterator gives, each once. In a step each rank computes what fits
 * into its tokens, and all gradients are summed; a rank whose iterator has ended takes part with none, until all have.
 *
 * <p>While the device computes a step, the task's thread takes the next sequences from the iterator and uploads them.
 *
 * <p>Threading: the rank's thread.
 */
final class RankTraining implements AutoCloseable {
    private static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f);
    private static final float MAX_NORM = 1;
    /** One step whose result is unread, one under way, one whose batch is being uploaded. */
    private static final int UPLOADS = 3;

    private static final int UNREAD = 2;

    private final Rank rank;
    private final BarrierConfig config;
    private final LearningRateSchedule schedule;
    private final Device device;
    private final Esm2 model;
    private final Strategy strategy;
    private final AdamW optimizer;
    private final GradientNorm norm;
    private final Pass pass;
    private final UploadRing uploads;
    private final StepReadback readback;
    private final StepSum labelledTokens;
    private final Batch batch;
    private final StepResult result = new StepResult();
    private final List<Double> losses = new ArrayList<>();
    private final List<Double> norms = new ArrayList<>();
    /** Of all labelled tokens of the next step those that this rank has. */
    private double share;

    private int steps;

    /** Makes the model on one of several ranks; each does, with the same config. */
    RankTraining(Rank rank, BarrierConfig config) {
        this.rank = rank;
        this.config = config;
        schedule = config.schedule();
        device = rank.device();
        DType dtype = device.provider() == Provider.CUDA ? DType.BFLOAT16 : DType.FLOAT32;
        AtomicReference<Strategy> made = new AtomicReference<>();
        model = new Esm2(device, Esm2Config.of(config.size(), config.context()), new ModelPlan(), declared -> {
            made.set(config.strategy().share(declared, dtype, config.seed(), rank));
            return made.get().parameters();
        });
        strategy = made.get();
        norm = new GradientNorm(model.parameters(), MAX_NORM);
        // BF16 weights are the upper halves of their masters.
        optimizer = new AdamW(
                model.parameters(), dtype == DType.BFLOAT16 ? ADAM.withMasters(AdamW.Masters.REMAINDER) : ADAM);
        pass = Pass.training(device);
        strategy.follow(pass);
        BatchShape shape = config.shape();
        uploads = new UploadRing(device, shape, UPLOADS);
        readback = new StepReadback(device.stream(), 1, UNREAD);
        labelledTokens = new StepSum(rank);
        batch = new Batch(shape);
    }

    /** Trains until the iterators of all ranks have ended. */
    RankReport train(Iterator<@Nullable String> partition, String executor) {
        var sequences = new PartitionSequences(partition, rank.index(), config.seed());
        try (var packer = new SequencePacker(config.shape(), new MaskedProteins(sequences))) {
            boolean more = take(packer);
            while (more) {
                step();
                more = take(packer);
                report();
            }
        }
        String file = config.save();
        if (file != null) {
            strategy.state(optimizer)
                    .save(Path.of(file), Map.of("model", config.size().label()));
        }
        return new RankReport(rank.index(), executor, sequences.taken(), losses, norms);
    }

    /** Takes this rank's sequences of the next step; false when no rank has any. */
    private boolean take(SequencePacker packer) {
        int own = packer.fill(batch) ? batch.labelled() : 0;
        long all = labelledTokens.of(own);
        share = all == 0 ? 0 : (double) own / all;
        if (own == 0 && all != 0 && strategy.needsEqualMicroBatches()) {
            new SequencePacker(config.shape(), new NoSequence()).fill(batch);
        }
        if (all != 0 && batch.microBatches() > 0) {
            uploads.upload(batch);
        }
        return all != 0;
    }

    private void step() {
        readback.begin();
        if (batch.microBatches() > 0) {
            gradients();
        }
        strategy.sumGradients();
        norm.compute();
        optimizer.step(schedule.at(++steps), norm);
        readback.finish(norm.norm());
    }

    private void gradients() {
        pass.begin();
        ModelInput input = uploads.next(pass.scope());
        strategy.lastMicroBatch();
        pass.sequences(input.sequences());
        Tensor loss = model.loss(input.ids(), input.labels(), pass);
        readback.addLoss(loss, share);
        model.backward((float) share, pass);
    }

    private void report() {
        readback.read(result);
        int step = losses.size() + 1;
        if (!Double.isFinite(result.loss()) || !Double.isFinite(result.gradNorm())) {
            throw new IllegalStateException("step " + step + ": loss " + result.loss() + " and gradients' norm "
                    + result.gradNorm() + " must be finite numbers; lower the learning rate, " + schedule.at(step));
        }
        losses.add(result.loss());
        norms.add(result.gradNorm());
    }

    @Override
    public void close() {
        device.synchronize();
        labelledTokens.close();
        uploads.close();
        readback.close();
        pass.close();
        optimizer.close();
        strategy.close();
        model.close();
    }
}
