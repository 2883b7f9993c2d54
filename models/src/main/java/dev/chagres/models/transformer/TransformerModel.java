package dev.chagres.models.transformer;

import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.batch.LayeredModel;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.TokenScores;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import java.util.List;
import java.util.Objects;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * A body and a head: {@code loss = head(norm(layers(embedding(ids))), labels)}. An architecture adds its configuration, its head and the id of
 * its padding.
 *
 * <p>Threading: the device's thread.
 */
public abstract class TransformerModel implements LayeredModel {
    private final TransformerBody body;
    private final TransformerHead head;

    /**
     * Asks for the memory of all parameters that body and head have declared, and owns it.
     *
     * @param body without memory yet
     * @param memory gives parameters of the body's plan their memory, such as a part of it from {@code FullySharded}
     */
    protected TransformerModel(
            Device device, TransformerBody body, TransformerHead head, Function<ModelPlan, Parameters> memory) {
        this.body = Objects.requireNonNull(body, "body");
        this.head = Objects.requireNonNull(head, "head");
        body.allocate(device, head::allocate, memory);
    }

    /** Returns what the head reads. */
    public final TransformerBody body() {
        return body;
    }

    /** Returns the number of elements of all parameters, also of those that other ranks keep, and of padding. */
    public final long parameterCount() {
        return body.plan().parameters().stream()
                .mapToLong(parameter -> parameter.wholeShape().count())
                .sum();
    }

    @Override
    public final Parameters parameters() {
        return body.parameters();
    }

    /**
     * Enqueues the hidden states behind the last norm, from which the head computes scores: what transformers calls {@code
     * last_hidden_state}. In a pass that trains, {@link #backward} does not follow this.
     *
     * @param ids INT32 [T]
     * @return [T, H]
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public final Tensor hidden(Tensor ids, Pass pass) {
        return body.forward(ids, pass);
    }

    /**
     * Enqueues the forward pass.
     *
     * @param ids INT32 [T]
     * @param labels of each token, as the class of the model says; where they are INT32 [T], a label outside the vocabulary or the classes, such
     *     as {@link dev.chagres.batch.Batch#IGNORED}, leaves its token out
     * @return the mean loss of the labelled tokens, FLOAT32 [1]
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public final Tensor loss(Tensor ids, Tensor labels, Pass pass) {
        return head.loss(hidden(ids, pass), labels, pass);
    }

    @Override
    public final Tensor loss(ModelInput input, Pass pass) {
        return loss(input.ids(), input.labels(), pass);
    }

    /**
     * Enqueues the gradients of all parameters for the latest {@link #loss}.
     *
     * @param factor on the loss: 1, or a micro-batch's share of the labelled tokens of its step
     */
    public final void backward(float factor, Pass pass) {
        backward(factor, null, pass);
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalArgumentException when shape, type or device of the scale do not fit
     */
    @Override
    public final void backward(float factor, @Nullable Tensor lossScale, Pass pass) {
        body.backward(head.backward(factor, lossScale, pass), pass);
    }

    @Override
    public final List<Layer> layers() {
        return body.layers();
    }

    @Override
    public final Tensor begin(ModelInput input, Pass pass) {
        return body.begin(input.ids(), pass);
    }

    @Override
    public final Tensor end(Tensor x, ModelInput input, Pass pass) {
        return head.loss(body.end(x, pass), input.labels(), pass);
    }

    @Override
    public final Tensor endBackward(float factor, @Nullable Tensor lossScale, Pass pass) {
        return body.endBackward(head.backward(factor, lossScale, pass), pass);
    }

    @Override
    public final void beginBackward(Tensor dy, Pass pass) {
        body.beginBackward(dy, pass);
    }

    @Override
    public final @Nullable TokenScores scores() {
        return head.scores();
    }

    /** Frees parameters and gradients. A second call does nothing. */
    @Override
    public final void close() {
        body.close();
    }
}
