package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;

/**
 * Takes the part of a sequence-parallel rank from the tokens, which all ranks have. It comes before the layers of a {@link
 * TensorParallel#withSequenceParallel} plan.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Megatron-LM's {@code scatter_to_sequence_parallel_region}.
 */
public final class TokenScatter {
    private static final class Call extends SavedContext {
        private final SavedTensor x = new SavedTensor("the input");
    }

    private final TensorParallel ranks;
    private final ContextPool<Call> saved = new ContextPool<>(this, Call::new);

    /** Makes one for the ranks of {@code plan}. */
    public TokenScatter(ModelPlan plan) {
        ranks = Checks.given("plan", plan).tensorParallel();
    }

    /**
     * Enqueues a copy of this rank's tokens.
     *
     * @param x [T, H], the same on all ranks, FLOAT32, BFLOAT16 or FLOAT16
     * @return [T / N, H], this rank's part; x itself where ranks are not sequence-parallel
     * @throws IllegalArgumentException when shape, type or device do not fit, or the N ranks do not divide T
     * @throws IllegalStateException when the pass was not begun, or inside {@code Communicator.group}
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public Tensor forward(Tensor x, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Checks.matrix(pass.stream(), "x", x);
        if (!ranks.isSequenceParallel()) {
            return x;
        }
        if (x.size(0) % ranks.size() != 0) {
            throw new IllegalArgumentException("x: expected a number of tokens that the " + ranks.size()
                    + " sequence-parallel ranks divide, got " + Checks.describe(x));
        }
        Tensor y = pass.kept().tensor(x.dtype(), x.size(0) / ranks.size(), x.size(1));
        copyOwn(x, y, ranks, pass);
        Inside.requireGradient(y, pass.isSaving() && x.requiresGradient());
        Call call = saved.push(pass);
        if (call != null) {
            call.x.set(x);
        }
        return y;
    }

    /**
     * Enqueues the gradient of the input.
     *
     * @param dy [T / N, H], this rank's part
     * @return [T, H], the same on all ranks, gathered from all ranks; dy itself where ranks are not sequence-parallel
     * @throws IllegalArgumentException when shape, type or device do not fit
     * @throws IllegalStateException when the last forward call of the pass was another layer's
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public Tensor backward(Tensor dy, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Checks.matrix(pass.stream(), "dy", dy);
        if (!ranks.isSequenceParallel()) {
            return dy;
        }
        Tensor x = saved.peek(pass).x.get();
        Checks.matrix(pass.stream(), "dy", dy, x.dtype(), x.size(0) / ranks.size(), x.size(1));
        Tensor dx = pass.temporary().like(x);
        ranks.gather(dy, dx, pass.stream());
        saved.pop(pass);
        return dx;
    }

    /** Enqueues a copy of this rank's rows. */
    static void copyOwn(Tensor whole, Tensor part, TensorParallel ranks, Pass pass) {
        part.copyFrom(
                pass.stream(), pass.temporary().view(whole, ranks.rank() * part.count(), part.size(0), part.size(1)));
    }

    @Override
    public String toString() {
        return "tokens scattered over " + ranks;
    }
}
