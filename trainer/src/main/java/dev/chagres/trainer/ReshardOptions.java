package dev.chagres.trainer;

import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.GradientSync;
import dev.chagres.sharding.Reshard;
import dev.chagres.sharding.ZeroStage;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** Options of {@code train} that say how often sharded weights are gathered and gradients summed. */
final class ReshardOptions {
    @Option(
            names = "--reshard",
            converter = OptionWords.OfReshard.class,
            paramLabel = "after-forward|after-step",
            description =
                    "with --strategy zero3 or hsdp, when gathered weights are freed: once a layer has read them, or at the end"
                            + " of the step, which takes one gather per step and memory for all weights"
                            + " (default: after-forward, with pipeline=P after-step)")
    private @Nullable Reshard reshard;

    @Option(
            names = "--gradient-sync",
            converter = OptionWords.OfGradientSync.class,
            paramLabel = "each-micro-batch|last-micro-batch",
            description =
                    "with --strategy zero3 or hsdp, in which micro-batches of a step ranks sum gradients; last-micro-batch takes"
                            + " memory for all gradients on each rank (default: each-micro-batch, with pipeline=P"
                            + " last-micro-batch)")
    private @Nullable GradientSync gradientSync;

    /** Returns {@code config} as these options say. A pipeline reads weights for several micro-batches in turn. */
    FullyShardedConfig apply(FullyShardedConfig config, int pipelineRanks) {
        if (config.stage() != ZeroStage.THREE) {
            return config;
        }
        FullyShardedConfig usual = pipelineRanks == 1
                ? config
                : config.withReshard(Reshard.AFTER_STEP).withGradientSync(GradientSync.LAST_MICRO_BATCH);
        return usual.withReshard(reshard != null ? reshard : usual.reshard())
                .withGradientSync(gradientSync != null ? gradientSync : usual.gradientSync());
    }

    /**
     * Checks that there is something to choose.
     *
     * @param zero what ranks shard; null for nothing
     * @param got what stands in errors
     * @throws IllegalArgumentException when weights are not sharded; the text names the option
     */
    void check(@Nullable FullyShardedConfig zero, Object got) {
        String given = reshard != null ? "--reshard" : gradientSync != null ? "--gradient-sync" : null;
        if (given != null && (zero == null || zero.stage() != ZeroStage.THREE)) {
            throw new IllegalArgumentException(
                    given + ": expected --strategy zero3 or hsdp beside it, whose ranks shard weights, got " + got);
        }
    }
}
