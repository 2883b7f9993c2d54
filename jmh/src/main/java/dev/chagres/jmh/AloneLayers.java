package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.launch.Rank;
import dev.chagres.parameter.Parameters;

/** The layers of {@link ShardedLayers} without sharding: each rank has all weights, and nothing is communicated. */
final class AloneLayers extends LayerStack {
    private final Parameters parameters;

    AloneLayers(Rank rank, LayerShape shape, LayerRecipe recipe) {
        super(rank, shape);
        parameters = Parameters.allocate(rank.device(), plan, DType.BFLOAT16, 1);
        var _ = recipe.begin(parameters, pass);
        warmUp();
    }

    @Override
    void beginStep() {}

    @Override
    void endStep() {
        parameters.nextStep();
    }

    @Override
    void await() {
        pass.stream().synchronize();
    }

    @Override
    public void close() {
        pass.close();
        parameters.close();
    }

    @Override
    public String toString() {
        return "each rank has all weights";
    }
}
