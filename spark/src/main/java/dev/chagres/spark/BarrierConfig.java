package dev.chagres.spark;

import dev.chagres.DType;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.bindings.Provider;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.trainer.Trainer;
import java.io.Serializable;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * What a barrier stage trains, the same for each of its ranks.
 *
 * <p>Threading: immutable.
 *
 * @param size of the ESM-2
 * @param strategy what each rank keeps of it
 * @param context most tokens of a sequence; a longer one gives a stretch of it
 * @param tokensPerRank most tokens of a rank in a step, padding included: a multiple of 16
 * @param learningRate after the warm-up, not negative
 * @param warmUpSteps steps over which the rate rises to it, not negative
 * @param seed equal seeds give equal first weights and masks
 * @param timeout how long a rank may keep the others waiting before it counts as failed
 * @param save the file that rank 0 writes in the end, on its host or where all hosts see it; null where none is wanted
 */
public record BarrierConfig(
        Esm2Size size,
        ParallelStrategy strategy,
        int context,
        int tokensPerRank,
        float learningRate,
        int warmUpSteps,
        long seed,
        Duration timeout,
        @Nullable String save)
        implements Serializable {
    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is out of its range
     */
    public BarrierConfig {
        Objects.requireNonNull(size, "size");
        Objects.requireNonNull(strategy, "strategy");
        Objects.requireNonNull(timeout, "timeout");
        if (context < MaskedProteins.SHORTEST_CONTEXT) {
            throw new IllegalArgumentException(
                    "context: expected at least " + MaskedProteins.SHORTEST_CONTEXT + " tokens, got " + context);
        }
        var _ = CommunicatorConfig.standard().withTimeout(timeout); // refuses what no rank could use
        if (tokensPerRank < context || tokensPerRank % BatchShape.TOKEN_MULTIPLE != 0) {
            throw new IllegalArgumentException("tokensPerRank: expected a multiple of " + BatchShape.TOKEN_MULTIPLE
                    + " of at least the context, " + context + ", got " + tokensPerRank);
        }
        if (!(learningRate >= 0) || Float.isInfinite(learningRate)) {
            throw new IllegalArgumentException("learningRate: expected a number of at least 0, got " + learningRate);
        }
        if (warmUpSteps < 0) {
            throw new IllegalArgumentException("warmUpSteps: expected at least 0, got " + warmUpSteps);
        }
    }

    /** Returns the tiny model, 512 tokens a rank and step, data-parallel: enough to see that a cluster works. */
    public static BarrierConfig tiny() {
        return new BarrierConfig(
                Esm2Size.TINY, ParallelStrategy.DDP, 128, 512, 1e-3f, 10, 42, Duration.ofMinutes(5), null);
    }

    /** Returns the same with another strategy. */
    public BarrierConfig withStrategy(ParallelStrategy newStrategy) {
        return new BarrierConfig(
                size, newStrategy, context, tokensPerRank, learningRate, warmUpSteps, seed, timeout, save);
    }

    /** Returns the same with another time that a rank may keep the others waiting. */
    public BarrierConfig withTimeout(Duration newTimeout) {
        return new BarrierConfig(
                size, strategy, context, tokensPerRank, learningRate, warmUpSteps, seed, newTimeout, save);
    }

    /** Returns the same with a file that rank 0 writes in the end. */
    public BarrierConfig withSave(String newSave) {
        return new BarrierConfig(
                size, strategy, context, tokensPerRank, learningRate, warmUpSteps, seed, timeout, newSave);
    }

    BatchShape shape() {
        return new BatchShape(BatchLayout.PACKED, tokensPerRank, context);
    }

    /** Returns what trains the model on so many ranks. */
    Trainer trainer(int ranks) {
        Trainer trainer = Trainer.of(Esm2Config.of(size, context), shape())
                .withDtype(Provider.current() == Provider.CUDA ? DType.BFLOAT16 : DType.FLOAT32)
                .withSeed(seed)
                .withSchedule(schedule())
                .withText("model", size.label());
        Trainer ranked = strategy.on(trainer, ranks);
        return save == null ? ranked : ranked.withSave(Path.of(save), 0);
    }

    /** How many steps there will be nobody knows before the partitions end. */
    LearningRateSchedule schedule() {
        return new LearningRateSchedule(learningRate, warmUpSteps, warmUpSteps, LearningRateSchedule.Decay.CONSTANT, 1);
    }
}
