package dev.chagres.trainer;

import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.GradientReduction;
import dev.chagres.sharding.GradientSync;
import dev.chagres.sharding.Reshard;
import dev.chagres.sharding.WeightGather;
import dev.chagres.sharding.ZeroStage;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** Options of {@code train} that say how, and how often, sharded weights are gathered and gradients reduced. */
final class ShardingOptions {
    @Option(
            names = "--weight-gather",
            converter = OptionWords.OfWeightGather.class,
            paramLabel = "device|copy-engine",
            description =
                    "with --strategy zero1, zero2 or zero3, or ranks along shard, how weights are gathered: into ordinary device"
                            + " memory, or by copy engines into windows registered with NCCL"
                            + " (default: device)")
    private @Nullable WeightGather weightGather;

    @Option(
            names = "--gradient-reduction",
            converter = OptionWords.OfGradientReduction.class,
            paramLabel = "reduce-scatter|copy-engine",
            description =
                    "with --strategy zero1, zero2 or zero3, or ranks along shard, how gradients are reduced: by NCCL's kernels, or"
                            + " by copy engines that bring each rank its parts, which a short kernel then sums in FP32"
                            + " (default: reduce-scatter)")
    private @Nullable GradientReduction gradientReduction;

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
        FullyShardedConfig gathered = config.withWeightGather(
                        weightGather != null ? weightGather : config.weightGather())
                .withGradientReduction(gradientReduction != null ? gradientReduction : config.gradientReduction());
        if (config.stage() != ZeroStage.THREE) {
            return gathered;
        }
        FullyShardedConfig usual = pipelineRanks == 1
                ? gathered
                : gathered.withReshard(Reshard.AFTER_STEP).withGradientSync(GradientSync.LAST_MICRO_BATCH);
        return usual.withReshard(reshard != null ? reshard : usual.reshard())
                .withGradientSync(gradientSync != null ? gradientSync : usual.gradientSync());
    }

    /**
     * Checks that there is something to gather, to reduce and to choose.
     *
     * @param zero what ranks shard; null for nothing
     * @param got what stands in errors
     * @throws IllegalArgumentException when nothing is sharded, or weights are not that options speak of; the text names the option
     */
    void check(@Nullable FullyShardedConfig zero, Object got) {
        check("--weight-gather", weightGather, "gather weights", zero, got);
        check("--gradient-reduction", gradientReduction, "reduce and scatter gradients", zero, got);
        String given = reshard != null ? "--reshard" : gradientSync != null ? "--gradient-sync" : null;
        if (given != null && (zero == null || zero.stage() != ZeroStage.THREE)) {
            throw new IllegalArgumentException(
                    given + ": expected --strategy zero3 or hsdp beside it, whose ranks shard weights, got " + got);
        }
    }

    private static void check(
            String option, @Nullable Enum<?> value, String action, @Nullable FullyShardedConfig zero, Object got) {
        if (value != null && zero == null) {
            throw new IllegalArgumentException(
                    option + ": expected --strategy zero1, zero2 or zero3, or ranks along shard, beside it, which "
                            + action + ", got " + got);
        }
    }
}
