package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.LayerSummary;
import dev.chagres.pass.Named;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver.Direction;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.te.Output;
import java.util.List;

/**
 * {@code y[t] = weight[ids[t]]}: one row a token.
 *
 * <p>Parameter: {@code weight} [V, H]. An identifier outside 0 to V - 1 gives a row of zeros, and no gradient.
 *
 * <p>In a plan of {@link TensorParallel} ranks each rank has the whole table, unless the embedding is made with {@link
 * #vocabularyParallel}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_embedding_forward}, {@code ops_embedding_backward} in {@code ops.h}.
 */
public final class Embedding implements Named {
    private static final class Ids extends SavedContext {
        private final SavedTensor ids = new SavedTensor("the identifiers");
    }

    private final String name;
    private final long hidden;
    private final Parameter weight;
    /** The ranks that split the rows. */
    private final TensorParallel ranks;
    /** Number of the first row that this rank has. */
    private final long first;

    private final ContextPool<Ids> saved = new ContextPool<>(this, Ids::new);

    /**
     * Declares the parameter in {@code plan}.
     *
     * @param vocabulary V, rows
     * @param hidden H, columns
     * @throws IllegalArgumentException when a size is not positive
     */
    public Embedding(long vocabulary, long hidden, Initializer initializer, ModelPlan plan) {
        this(vocabulary, hidden, Checks.given("initializer", initializer), plan, TensorParallel.none());
    }

    /**
     * Declares the rows of the table that this tensor-parallel rank of {@code plan} has: rank r of N has rows {@code r ceil(V / N)} to
     * before {@code (r + 1) ceil(V / N)}, so that the last ranks may have fewer, or none. Without tensor-parallel ranks it is {@link
     * #Embedding(long, long, Initializer, ModelPlan)}.
     *
     * <p>Each rank looks up its own rows, and the outputs are summed over the ranks. Sequence-parallel ranks get their part of the tokens,
     * so no {@link TokenScatter} is needed; backward gathers the gradients of all tokens. {@link Linear#tied(Parameter, ModelPlan)} with
     * this table gives a rank its own columns of the logits, from which {@link CrossEntropy#vocabularyParallel} computes a loss.
     *
     * {@snippet file="dev/chagres/parallel/VocabularyParallelTest.java" region="vocabularyParallel"}
     *
     * <p>Source: Megatron-LM's {@code VocabParallelEmbedding}.
     *
     * @param vocabulary V, rows of all ranks together
     * @throws IllegalArgumentException when a size is not positive
     */
    public static Embedding vocabularyParallel(long vocabulary, long hidden, Initializer initializer, ModelPlan plan) {
        return new Embedding(
                vocabulary,
                hidden,
                Checks.given("initializer", initializer),
                plan,
                Checks.given("plan", plan).tensorParallel());
    }

    private Embedding(long vocabulary, long hidden, Initializer initializer, ModelPlan plan, TensorParallel ranks) {
        name = Checks.given("plan", plan).name();
        Checks.atLeastOne("vocabulary", vocabulary);
        this.hidden = Checks.atLeastOne("hidden", hidden);
        this.ranks = ranks;
        if (ranks.isSplit()) {
            Shape whole = Shape.of(vocabulary, hidden);
            weight = plan.declare(
                    "weight",
                    initializer,
                    new ParameterSplit(whole, 0, List.of(vocabulary), ranks.rank(), ranks.size()));
            first = ranks.begin(vocabulary, ranks.rank());
        } else {
            weight = plan.declare("weight", initializer, vocabulary, hidden);
            first = 0;
        }
    }

    @Override
    public String name() {
        return name;
    }

    /** Returns the table [V, H], or the rows of it that this rank has. */
    public Parameter weight() {
        return weight;
    }

    /**
     * Enqueues the look-up.
     *
     * @param ids INT32 [T]; the same on ranks that divide the rows
     * @return y, [T, H], in the type of the weights; of N sequence-parallel ranks that divide the rows the part of each, [T / N, H]
     * @throws IllegalArgumentException when shape, type or device do not fit, or sequence-parallel ranks do not divide T
     * @throws IllegalStateException when the pass was not begun, or inside {@code Communicator.group}
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public Tensor forward(Tensor ids, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Checks.on(pass.stream(), "ids", ids);
        if (ids.rank() != 1 || ids.dtype() != DType.INT32) {
            throw new IllegalArgumentException("ids: expected INT32[T], got " + Checks.describe(ids));
        }
        Layer.checkHere(this, weight, ids);
        ensureShared(ids);
        Tensor y = pass.kept().tensor(weight.unreadWeight().dtype(), rows(ids), hidden);
        Scope before = pass.enter();
        try {
            lookUp(ids, y, pass);
        } finally {
            pass.leave(before);
        }
        Inside.requireGradient(y, pass.isSaving() && !weight.isFrozen());
        Ids kept = saved.push(pass);
        if (kept != null) {
            kept.ids.set(ids);
        }
        return y;
    }

    private void ensureShared(Tensor ids) {
        if (ranks.isSequenceParallel() && ids.size(0) % ranks.size() != 0) {
            throw new IllegalArgumentException("ids: expected a number of tokens that the " + ranks.size()
                    + " sequence-parallel ranks divide, got " + Checks.describe(ids));
        }
    }

    /** Returns how many rows of the output this rank has. */
    private long rows(Tensor ids) {
        return ranks.isSequenceParallel() ? ids.size(0) / ranks.size() : ids.size(0);
    }

    private void lookUp(Tensor ids, Tensor y, Pass pass) {
        boolean done = false;
        try {
            pass.calls().begin(Direction.FORWARD);
            if (ranks.isSequenceParallel()) {
                Tensor own = pass.temporary().tensor(y.dtype(), ids.size(0), hidden);
                dev.chagres.ops.Embedding.forward(weight.weight(), first, ids, own, pass.stream());
                ranks.reduceScatter(own, y, pass.stream());
            } else {
                dev.chagres.ops.Embedding.forward(weight.weight(), first, ids, y, pass.stream());
                ranks.sum(y, pass.stream());
            }
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
     * @param dy gradient of the output, [T, H]; of sequence-parallel ranks that divide the rows this rank's part, [T / N, H]
     * @throws IllegalArgumentException when shape, type or device do not fit
     * @throws IllegalStateException when the last forward call of the pass was another layer's
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void backward(Tensor dy, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Tensor ids = saved.peek(pass).ids.get();
        Checks.matrix(pass.stream(), "dy", dy, weight.unreadWeight().dtype(), rows(ids), hidden);
        saved.pop(pass);
        if (weight.isFrozen()) {
            return;
        }
        Scope before = pass.enter();
        try {
            addGradient(dy, ids, pass);
        } finally {
            pass.leave(before);
        }
    }

    private void addGradient(Tensor dy, Tensor ids, Pass pass) {
        boolean done = false;
        try {
            pass.calls().begin(Direction.BACKWARD);
            Tensor all = dy;
            if (ranks.isSequenceParallel()) {
                all = pass.temporary().tensor(dy.dtype(), ids.size(0), hidden);
                ranks.gather(dy, all, pass.stream());
            }
            Output output = pass.nextGradient(weight);
            dev.chagres.ops.Embedding.backward(all, first, ids, weight.gradient(), output, pass.stream());
            pass.calls().end(Direction.BACKWARD);
            done = true;
        } finally {
            if (!done) {
                pass.calls().fail();
                pass.fail();
            }
        }
    }

    @Override
    public String toString() {
        LayerSummary summary = new LayerSummary()
                .with("vocabulary", weight.wholeShape().size(0))
                .with("hidden", hidden);
        if (ranks.isSplit()) {
            summary.with("parallel", "VOCABULARY");
        }
        return LayerSummary.line(name, "Embedding", summary.toString());
    }
}
