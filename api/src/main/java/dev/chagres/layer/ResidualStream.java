package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.layer.NormLayer.NormFusion;
import dev.chagres.layer.TransformerLayerConfig.ResidualSource;
import dev.chagres.ops.Elementwise;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import java.util.Arrays;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * {@code s = x + path(dropout(branch(norm(x))))} for each branch of a layer, and optionally a norm of the last sum. The sum overwrites the
 * branch's output, and is what the next norm saves; backward updates one gradient in place.
 *
 * <p>The bias of a branch's last product is added to the rounded product in the sum, {@code (product + bias) + x}, as TE does; before
 * dropout or drop path the product itself adds it.
 *
 * <p>Threading: the device's thread.
 */
final class ResidualStream {
    /** What backward needs of one branch. */
    private static final class Part extends SavedContext {
        private final ResidualDropout.Drawn drawn = new ResidualDropout.Drawn();
        private boolean inputLearns;
    }

    private final Layer owner;
    private final NormedBranch[] parts;
    private final ResidualSource source;
    private final @Nullable NormLayer outputNorm;
    private final ResidualDropout dropout;
    private final ContextPool<Part> saved;

    /**
     * Adds each branch to its input or to its norm's output.
     *
     * @param outputNorm of the last sum; null where there is none
     * @param parts norms and branches; only the first may lack a norm
     */
    ResidualStream(
            Layer owner,
            ResidualDropout dropout,
            ResidualSource source,
            @Nullable NormLayer outputNorm,
            NormedBranch... parts) {
        this.owner = owner;
        this.dropout = dropout;
        this.source = source;
        this.outputNorm = outputNorm;
        this.parts = parts;
        saved = new ContextPool<>(owner, Part::new);
    }

    /** {@code y} may be {@code x} while nothing is saved. */
    void run(Tensor x, Tensor y, Pass pass) {
        boolean saving = pass.isSaving();
        boolean drops = dropout.drops(pass);
        Tensor end = outputNorm == null ? y : pass.kept().like(y);
        Tensor stream = x;
        Tensor update = null;
        Tensor bias = null;
        // Each branch overwrites it, unless backward reads the norm's output.
        Tensor passing = null;
        for (int i = 0; i < parts.length; i++) {
            NormLayer norm = parts[i].normOrNull();
            Tensor read = stream;
            if (norm != null) {
                boolean keeps = parts[i].keepsNormed(x.size(0), pass);
                read = keeps
                        ? pass.kept().like(x)
                        : passing == null ? pass.temporary().like(x) : passing;
                // With ResidualSource.NORM the next sum reads this norm's output.
                passing = keeps || source == ResidualSource.NORM ? passing : read;
                // With ResidualSource.NORM sums read the norm's output in its own type.
                Target target = source == ResidualSource.INPUT ? parts[i].begin(read, pass) : norm.plain(read);
                Tensor sum = saving && update != null ? update : end;
                stream = norm.runOfSum(update, bias, stream, sum, target, pass);
                Inside.requireGradient(read, stream.requiresGradient() || norm.requiresGradient());
            }
            boolean last = i == parts.length - 1;
            Tensor base = source == ResidualSource.INPUT ? stream : read;
            Tensor added = place(saving, last, base, end, pass);
            if (drops) {
                parts[i].runBranch(read, added, pass);
            } else {
                bias = parts[i].runBranchWithoutBias(read, added, pass);
            }
            Part part = keep(read, pass);
            boolean sums = drops || (last && outputNorm == null);
            stream = sums ? add(added, bias, base, saving ? added : end, drops, part, pass) : base;
            update = sums ? null : added;
        }
        if (outputNorm != null) {
            Tensor sum = saving && update != null ? update : end;
            outputNorm.runOfSum(update, bias, stream, sum, outputNorm.plain(y), pass);
        }
    }

    private @Nullable Part keep(Tensor read, Pass pass) {
        Part part = saved.push(pass);
        if (part != null) {
            part.inputLearns = read.requiresGradient();
            part.drawn.clear();
        }
        return part;
    }

    /** Returns the buffer for a branch's output: that of its sum, unless the tensor that it is added to is there. */
    private static Tensor place(boolean saving, boolean last, Tensor base, Tensor end, Pass pass) {
        if (saving) {
            return last ? end : pass.kept().like(end);
        }
        return base.address() == end.address() ? pass.temporary().like(end) : end;
    }

    /**
     * Enqueues {@code sum = (added + bias) + stream}, or with dropout and drop path, which take no bias, {@code sum = path(dropout(added)) +
     * stream}, and returns the sum.
     */
    private Tensor add(
            Tensor added,
            @Nullable Tensor bias,
            Tensor stream,
            Tensor sum,
            boolean drops,
            @Nullable Part part,
            Pass pass) {
        boolean learns = stream.requiresGradient() || added.requiresGradient();
        if (drops) {
            dropout.add(added, stream, sum, part == null ? null : part.drawn, pass);
        } else {
            NormLayer.enqueueSum(added, bias, stream, sum, pass);
        }
        Inside.requireGradient(sum, learns);
        return sum;
    }

    /** {@code dx} may be {@code dy}. */
    void gradient(Tensor dy, Tensor dx, Pass pass) {
        Tensor dstream = dy;
        Scope temporary = pass.temporary();
        Tensor dread = temporary.like(dy);
        Tensor dropped = null;
        if (outputNorm != null) {
            dstream = temporary.like(dy);
            outputNorm.gradient(dy, dstream, pass);
        }
        for (int i = parts.length - 1; i >= 0; i--) {
            Part part = saved.pop(pass);
            Tensor dadded = dstream;
            if (part.drawn.isPresent()) {
                dropped = dropped == null ? temporary.like(dy) : dropped;
                dropout.gradient(dstream, dropped, part.drawn, pass);
                dadded = dropped;
            }
            parts[i].branch.backward(dadded, dread, pass);
            NormLayer norm = parts[i].normOrNull();
            if (part.inputLearns) {
                throughNorm(norm, dread, dstream, dx, pass);
                dstream = dx;
            } else if (norm != null) {
                norm.discard(pass);
            }
        }
    }

    /** Enqueues the gradient dx of a branch's input from {@code dread}, the branch's gradient, and that of the sum. */
    private void throughNorm(@Nullable NormLayer norm, Tensor dread, Tensor dstream, Tensor dx, Pass pass) {
        if (norm == null) {
            Elementwise.add(dread, dstream, dx, pass.stream());
        } else if (source == ResidualSource.INPUT) {
            norm.gradientOfSum(dread, dstream, dx, pass);
        } else {
            Elementwise.add(dread, dstream, dread, pass.stream());
            norm.gradient(dread, dx, pass);
        }
    }

    /** Returns the position of the norm of a branch, by its number. */
    private NormFusion fusion(int branch, Pass pass) {
        boolean fromInput = source == ResidualSource.INPUT;
        return new NormFusion(branch > 0 && !dropout.drops(pass), fromInput, fromInput);
    }

    /** Returns which kernels run, line by line. */
    String explain(Tensor x, Pass pass) {
        return IntStream.range(0, parts.length)
                        .mapToObj(i -> parts[i] instanceof ParallelBranches both
                                ? both.branch.explainInside(x, pass)
                                : parts[i].explain(x, fusion(i, pass), pass))
                        .collect(Collectors.joining("\n"))
                + explainSums(x, pass);
    }

    private String explainSums(Tensor x, Pass pass) {
        String norm = outputNorm == null
                ? ""
                : "\n" + outputNorm.explain(x, new NormFusion(!dropout.drops(pass), false, false), "");
        String sources = source == ResidualSource.INPUT
                ? ""
                : "\n" + owner.name() + ": residual sums take the norms' outputs, and ops_add sums their two gradients";
        boolean addBiases = !dropout.drops(pass) && Arrays.stream(parts).anyMatch(NormedBranch::endsWithBias);
        String biases = addBiases ? "\n" + owner.name() + ": residual sums add the biases of the last products" : "";
        return sources + biases + norm;
    }

    /**
     * {@code y = first(x) + second(x)}, as one branch of a residual stream.
     *
     * <p>Threading: the device's thread.
     */
    static final class ParallelBranches extends NormedBranch {
        ParallelBranches(String name, NormedBranch first, NormedBranch second) {
            super(name, null, new Sum(name, first, second), null, null);
        }

        private static final class Sum extends Layer {
            /** What backward needs to know of the input. */
            private static final class Input extends SavedContext {
                private boolean learns;
            }

            private final Layer first;
            private final Layer second;
            private final ContextPool<Input> saved = new ContextPool<>(this, Input::new);

            private Sum(String name, Layer first, Layer second) {
                super(name);
                this.first = first;
                this.second = second;
            }

            @Override
            protected void run(Tensor x, Tensor y, Pass pass) {
                Tensor summand = pass.kept().like(y);
                first.forward(x, summand, pass);
                second.forward(x, y, pass);
                Elementwise.add(y, summand, y, pass.stream());
                Input input = saved.push(pass);
                if (input != null) {
                    input.learns = x.requiresGradient();
                }
            }

            @Override
            protected void gradient(Tensor dy, Tensor dx, Pass pass) {
                boolean learns = saved.pop(pass).learns;
                Tensor summand = pass.temporary().like(dx);
                second.backward(dy, summand, pass);
                first.backward(dy, dx, pass);
                if (learns) {
                    Elementwise.add(dx, summand, dx, pass.stream());
                }
            }

            @Override
            public boolean requiresGradient() {
                return anyRequiresGradient(first, second);
            }

            @Override
            public void checkInput(Tensor x) {
                first.checkInput(x);
                second.checkInput(x);
            }

            @Override
            protected String explanation(Tensor x, Pass pass) {
                return first.explainInside(x, pass) + "\n" + second.explainInside(x, pass);
            }
        }
    }
}
