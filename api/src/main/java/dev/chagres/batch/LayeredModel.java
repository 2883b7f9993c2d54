package dev.chagres.batch;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A model whose layers follow one another, so that the ranks of a pipeline can have some each: {@code loss = end(layers(begin(input)))}.
 *
 * <p>Threading: the device's thread.
 */
public interface LayeredModel extends TrainedModel {
    /**
     * Which part of a model has which parameters. A parameter may be in both ends, such as the table of an embedding that a head reads.
     *
     * <p>Threading: immutable.
     *
     * @param begin those of {@link LayeredModel#begin}
     * @param layers those of each layer
     * @param end those of {@link LayeredModel#end}
     * @param columns of what goes from one layer to the next
     */
    record Parts(List<Parameter> begin, List<List<Parameter>> layers, List<Parameter> end, long columns) {
        /**
         * Copies the lists.
         *
         * @throws IllegalArgumentException when there is no layer, or no column
         */
        public Parts {
            begin = List.copyOf(Checks.given("begin", begin));
            layers = List.copyOf(Checks.given("layers", layers));
            end = List.copyOf(Checks.given("end", end));
            if (layers.isEmpty()) {
                throw new IllegalArgumentException("layers: expected at least one, got none");
            }
            Checks.atLeastOne("columns", columns);
        }
    }

    /** Returns the layers, each of which keeps the shape of what it is given. */
    List<Layer> layers();

    /**
     * Enqueues what comes before the layers.
     *
     * @return what the first layer reads: a row for each token, or for each of this rank's part of them
     */
    Tensor begin(ModelInput input, Pass pass);

    /**
     * Enqueues what comes after the layers.
     *
     * @param x what the last layer has made
     * @return the mean loss of the labelled tokens, FLOAT32 [1]
     */
    Tensor end(Tensor x, ModelInput input, Pass pass);

    /**
     * Enqueues the gradients of the latest {@link #end}.
     *
     * @param factor on the loss
     * @param lossScale another factor, FLOAT32 [1]; null for none
     * @return the gradient of what the last layer has made
     */
    Tensor endBackward(float factor, @Nullable Tensor lossScale, Pass pass);

    /**
     * Enqueues the gradients of the latest {@link #begin}.
     *
     * @param dy the gradient of what the first layer reads
     */
    void beginBackward(Tensor dy, Pass pass);
}
