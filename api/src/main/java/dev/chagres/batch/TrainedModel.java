package dev.chagres.batch;

import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.Trainable;
import dev.chagres.pass.Pass;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * What a training loop needs of a model: its parameters, the loss of a micro-batch, and the gradients of that loss.
 *
 * <p>A model declares its parameters in a {@link ModelPlan} before they have memory, so that one that is written once trains on one rank and
 * on many, which may shard it or split its layers and tokens. A {@link LayeredModel} can also be divided among the ranks of a pipeline.
 *
 * <p>Threading: the device's thread, but for {@link #flops}.
 */
public interface TrainedModel extends AutoCloseable {
    /** Makes a model on a device. */
    @FunctionalInterface
    interface Factory {
        /**
         * Makes the model with its first weights.
         *
         * @param plan an empty one, in which the model declares its parameters; it says which ranks split layers and tokens
         * @param memory called once, when all parameters are declared; of a rank it gives memory for what that rank has
         */
        TrainedModel make(Device device, ModelPlan plan, Function<ModelPlan, Parameters> memory);

        /**
         * Returns which parts of the model have which parameters, for the ranks of a pipeline; empty, as here, if it cannot be divided.
         *
         * @param declared where the model has declared its parameters
         */
        default Optional<LayeredModel.Parts> parts(ModelPlan declared) {
            return Optional.empty();
        }

        /** Returns a factory of the same model, of which the parameters that {@code trainable} does not train are frozen. */
        default Factory training(Trainable trainable) {
            Checks.given("trainable", trainable);
            return chosen(plan -> plan.train(trainable));
        }

        /** Returns a factory of the same model with low-rank adapters, which are trained in its place. */
        default Factory adapted(LoraConfig lora) {
            Checks.given("lora", lora);
            return chosen(plan -> plan.adapt(lora));
        }

        private Factory chosen(Consumer<ModelPlan> choice) {
            Factory of = this;
            return new Factory() {
                @Override
                public TrainedModel make(Device device, ModelPlan plan, Function<ModelPlan, Parameters> memory) {
                    choice.accept(plan);
                    return of.make(device, plan, memory);
                }

                @Override
                public Optional<LayeredModel.Parts> parts(ModelPlan declared) {
                    return of.parts(declared);
                }
            };
        }
    }

    /** Returns weights and gradients. */
    Parameters parameters();

    /**
     * Enqueues forward of a micro-batch, whose sequences the pass has been given.
     *
     * @param input tokens and labels; a label of {@link Batch#IGNORED} leaves its token out
     * @return the mean loss of the labelled tokens, FLOAT32 [1]
     */
    Tensor loss(ModelInput input, Pass pass);

    /**
     * Enqueues the gradients of all parameters for the latest {@link #loss}; they are added to those that are there.
     *
     * @param factor on the loss: the micro-batch's share of the labelled tokens of its step
     * @param lossScale another factor, FLOAT32 [1]; null for none
     */
    void backward(float factor, @Nullable Tensor lossScale, Pass pass);

    /**
     * Returns the scores from which the latest {@link #loss} was computed, which are there until {@link #backward} or {@link Pass#begin()}. An
     * evaluation counts with them how many labels are predicted.
     *
     * @return null, as here, if the model has none
     */
    default @Nullable TokenScores scores() {
        return null;
    }

    /** Returns the floating-point operations of forward and backward of a batch, padding left out; for any thread. */
    double flops(Batch batch);

    /** Returns the id that fills the micro-batches of captured steps, without labels: one that the model takes; here 0. */
    default int padding() {
        return 0;
    }

    /** Frees parameters and gradients; a model that holds more frees that, too. A second call does nothing. */
    @Override
    default void close() {
        parameters().close();
    }
}
