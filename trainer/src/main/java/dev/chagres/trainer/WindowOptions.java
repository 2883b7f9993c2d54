package dev.chagres.trainer;

import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.GradientReduction;
import dev.chagres.sharding.WeightGather;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** Options of {@code train} that say in which memory, and by what, sharded weights are gathered and gradients reduced. */
final class WindowOptions {
    @Option(
            names = "--weight-gather",
            converter = OptionWords.OfWeightGather.class,
            paramLabel = "device|window|copy-engine",
            description =
                    "with --strategy zero1, zero2 or zero3, or ranks along shard, how weights are gathered: into ordinary device"
                            + " memory, into windows registered with NCCL, or into such windows by copy engines"
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

    /** Returns {@code config} as these options say. */
    FullyShardedConfig apply(FullyShardedConfig config) {
        return config.withWeightGather(weightGather != null ? weightGather : config.weightGather())
                .withGradientReduction(gradientReduction != null ? gradientReduction : config.gradientReduction());
    }

    /**
     * Checks that there is something to gather and to reduce.
     *
     * @param zero what ranks shard; null for nothing
     * @param got what stands in errors
     * @throws IllegalArgumentException when nothing is sharded; the text names the option
     */
    void check(@Nullable FullyShardedConfig zero, Object got) {
        check("--weight-gather", weightGather, "gather weights", zero, got);
        check("--gradient-reduction", gradientReduction, "reduce and scatter gradients", zero, got);
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
