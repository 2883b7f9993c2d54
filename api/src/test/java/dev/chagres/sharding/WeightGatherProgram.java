package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.launch.Ranks;
import dev.chagres.recipe.DelayedScaling;

/** What a rank's process runs in {@link WeightGatherTest} and {@link GradientReductionTest}. */
final class WeightGatherProgram {
    private WeightGatherProgram() {}

    /** The stage, how weights are gathered, the number of copies, and how gradients are reduced. */
    public static void main(String[] arguments) {
        FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.valueOf(arguments[0]))
                .withWeightGather(WeightGather.valueOf(arguments[1]))
                .withGradientReduction(GradientReduction.valueOf(arguments[3]));
        int copies = Integer.parseInt(arguments[2]);
        var trained = Ranks.fromEnvironment()
                .run(rank ->
                        WeightGatherTraining.train(rank, config, copies, DType.BFLOAT16, DelayedScaling.standard()))
                .getFirst();
        System.out.println(trained.described() + "; " + trained.made() + " " + trained.digest());
    }
}
