package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.internal.TensorCell;

/**
 * {@code y[t] = weight[ids[t]]}: one row a token.
 *
 * <p>Parameter: {@code weight} [V, H]. An identifier outside 0 to V - 1 gives a row of zeros, and no gradient.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_embedding_forward}, {@code ops_embedding_backward} in {@code ops.h}.
 */
public final class Embedding {
    private final long vocabulary;
    private final long hidden;
    private final Parameter weight;

    /** Declares the parameter in {@code plan}. */
    public Embedding(long vocabulary, long hidden, Initializer initializer, ParameterPlan plan) {
        this.vocabulary = vocabulary;
        this.hidden = hidden;
        weight = plan.declare("weight", initializer, vocabulary, hidden);
    }

    /** Returns the table [V, H]. */
    public Parameter weight() {
        return weight;
    }

    /**
     * Enqueues the look-up.
     *
     * @param ids INT32 [T]
     * @param scope receives y, [T, H], in the type of the weights
     * @throws IllegalArgumentException when shape, type or device do not fit
     */
    public Tensor forward(Tensor ids, Scope scope) {
        TensorCell tokens = checkIds(ids, scope);
        TensorCell table = weight.weight(scope).cell();
        Tensor y = scope.tensor(table.dtype(), tokens.size(0), hidden);
        Status.ops(
                Ops.ops_embedding_forward(
                        table.pointer(),
                        tokens.pointer(),
                        y.pointer(),
                        tokens.size(0),
                        vocabulary,
                        hidden,
                        table.dtype().code(),
                        scope.stream().handle()),
                "ops_embedding_forward");
        return y;
    }

    /**
     * Enqueues the gradient of the table.
     *
     * @param dy gradient of the output, [T, H]
     * @param ids those of forward
     * @param scope its stream computes
     * @throws IllegalArgumentException when shape, type or device do not fit
     */
    public void backward(Tensor dy, Tensor ids, Accumulation accumulation, Scope scope) {
        TensorCell tokens = checkIds(ids, scope);
        TensorCell gradient =
                Checks.matrix(scope, "dy", dy, weight.weight(scope).dtype(), tokens.size(0), hidden);
        Status.ops(
                Ops.ops_embedding_backward(
                        gradient.pointer(),
                        tokens.pointer(),
                        weight.gradient().pointer(),
                        accumulation.beta(),
                        tokens.size(0),
                        vocabulary,
                        hidden,
                        gradient.dtype().code(),
                        scope.stream().handle()),
                "ops_embedding_backward");
    }

    private static TensorCell checkIds(Tensor ids, Scope scope) {
        TensorCell cell = Checks.on(scope, "ids", ids);
        if (cell.rank() != 1 || cell.dtype() != DType.INT32) {
            throw new IllegalArgumentException("ids: expected INT32[T], got " + Checks.describe(cell));
        }
        return cell;
    }
}
