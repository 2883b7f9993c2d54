package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.layer.PassObserver.Direction;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.te.Output;

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
    private static final class Ids extends Saved {
        private final Kept ids = new Kept("the identifiers");
    }

    private final String name;
    private final long hidden;
    private final Parameter weight;
    private final SavedPool<Ids> saved = new SavedPool<>(this, Ids::new);

    /** Declares the parameter in {@code plan}. */
    public Embedding(long vocabulary, long hidden, Initializer initializer, ModelPlan plan) {
        Checks.given("initializer", initializer);
        name = Checks.given("plan", plan).name();
        this.hidden = hidden;
        weight = plan.declare("weight", initializer, vocabulary, hidden);
    }

    /** Returns the name in errors: that of the group. */
    String name() {
        return name;
    }

    /** Returns the table [V, H]. */
    public Parameter weight() {
        return weight;
    }

    /**
     * Enqueues the look-up.
     *
     * @param ids INT32 [T]
     * @return y, [T, H], in the type of the weights
     * @throws IllegalArgumentException when shape, type or device do not fit
     * @throws IllegalStateException when the pass was not begun
     */
    public Tensor forward(Tensor ids, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Checks.on(pass.stream(), "ids", ids);
        if (ids.rank() != 1 || ids.dtype() != DType.INT32) {
            throw new IllegalArgumentException("ids: expected INT32[T], got " + Checks.describe(ids));
        }
        Layer.checkHere(this, weight, ids);
        Tensor y = pass.kept().tensor(weight.unreadWeight().dtype(), ids.size(0), hidden);
        lookUp(ids, y, pass);
        Inside.requireGradient(y, pass.isSaving() && !weight.isFrozen());
        Ids kept = saved.push(pass);
        if (kept != null) {
            kept.ids.set(ids);
        }
        return y;
    }

    private void lookUp(Tensor ids, Tensor y, Pass pass) {
        boolean done = false;
        try {
            pass.calls().begin(Direction.FORWARD);
            dev.chagres.ops.Embedding.forward(weight.weight(), ids, y, pass.stream());
            pass.calls().end(Direction.FORWARD);
            done = true;
        } finally {
            if (!done) {
                pass.calls().fail();
            }
        }
    }

    /**
     * Enqueues the gradient of the table.
     *
     * @param dy gradient of the output, [T, H]
     * @throws IllegalArgumentException when shape, type or device do not fit
     * @throws IllegalStateException when the last forward call of the pass was another layer's
     */
    public void backward(Tensor dy, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Tensor ids = saved.peek(pass).ids.get();
        Checks.matrix(pass.stream(), "dy", dy, weight.unreadWeight().dtype(), ids.size(0), hidden);
        saved.pop(pass);
        if (!weight.isFrozen()) {
            addGradient(dy, ids, pass);
        }
    }

    private void addGradient(Tensor dy, Tensor ids, Pass pass) {
        boolean done = false;
        try {
            pass.calls().begin(Direction.BACKWARD);
            Output output = pass.nextGradient(weight);
            dev.chagres.ops.Embedding.backward(dy, ids, weight.gradient(), output, pass.stream());
            pass.calls().end(Direction.BACKWARD);
            done = true;
        } finally {
            if (!done) {
                pass.calls().fail();
            }
        }
    }

    @Override
    public String toString() {
        LayerSummary summary =
                new LayerSummary().with("vocabulary", weight.shape().size(0)).with("hidden", hidden);
        return LayerSummary.line(name, "Embedding", summary.toString());
    }
}
