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
 * Gathers the tokens of all sequence-parallel ranks, each of which has a part, on every rank. It comes after the layers of a {@link
 * TensorParallel#withSequenceParallel} plan; the layers after it compute the same on all ranks.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Megatron-LM's {@code gather_from_sequence_parallel_region}.
 */
public final class TokenGather {
    private static final class Call extends SavedContext {
        private final SavedTensor x = new SavedTensor("the input");
    }

    private final TensorParallel ranks;
    private final ContextPool<Call> saved = new ContextPool<>(this, Call::new);

    /** Makes one for the ranks of {@code plan}. */
    public TokenGather(ModelPlan plan) {
        ranks = Checks.given("plan", plan).tensorParallel();
    }

    /**
     * Enqueues all tokens.
     *
     * @param x [T / N, H], this rank's part, FLOAT32, BFLOAT16 or FLOAT16
     * @return [T, H], the same on all ranks; x itself where ranks are not sequence-parallel
     * @throws IllegalArgumentException when shape, type or device do not fit
     * @throws IllegalStateException when the pass was not begun, or inside {@code Communicator.group}
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public Tensor forward(Tensor x, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Checks.matrix(pass.stream(), "x", x);
        if (!ranks.isSequenceParallel()) {
            return x;
        }
        Tensor y = pass.kept().tensor(x.dtype(), x.size(0) * ranks.size(), x.size(1));
        ranks.gather(x, y, pass.stream());
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
     * @param dy [T, H], the same on all ranks
     * @return [T / N, H], this rank's part; dy itself where ranks are not sequence-parallel
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
        Checks.matrix(pass.stream(), "dy", dy, x.dtype(), x.size(0) * ranks.size(), x.size(1));
        Tensor dx = pass.temporary().like(x);
        TokenScatter.copyOwn(dy, dx, ranks, pass);
        saved.pop(pass);
        return dx;
    }

    @Override
    public String toString() {
        return "tokens gathered over " + ranks;
    }
}
