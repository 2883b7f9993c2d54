package dev.chagres.pass;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.recipe.Quantizers;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A layer that keeps only its input, and runs its forward again in backward: less memory for more work, the same bits.
 *
 * <p>The second forward saves its tensors in memory of the stream, which is taken back when backward returns. Recomputed layers may contain
 * recomputed layers.
 *
 * <p>Threading: the device's thread.
 */
public final class Recomputed extends Layer {
    private static final class Context extends SavedContext {
        private final SavedTensor x = new SavedTensor("the input");
        private final SavedTensor y = new SavedTensor("the output");
        private long site;
        private @Nullable Sequences sequences;
        private @Nullable Quantizers quantizers;
        private boolean calibrating;
    }

    private final Layer inner;
    private final ContextPool<Context> contexts = new ContextPool<>(this, Context::new);

    /** Recomputes {@code inner}. */
    public Recomputed(Layer inner) {
        super(Checks.given("inner", inner).name());
        this.inner = inner;
    }

    /** Returns the layer that is recomputed. */
    public Layer inner() {
        return inner;
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        Context context = contexts.push(pass);
        if (context != null) {
            context.x.set(x);
            context.y.set(y);
            context.site = pass.draws().site();
            context.sequences = pass.sequencesOrNull();
            context.quantizers = pass.quantizers();
            context.calibrating = pass.isCalibrating();
        }
        boolean saving = pass.isSaving();
        pass.saving(false);
        try {
            inner.forward(x, y, pass);
        } finally {
            pass.saving(saving);
        }
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Context context = contexts.pop(pass);
        Tensor x = context.x.get();
        Tensor y = context.y.get();
        long site = pass.draws().site();
        Sequences sequences = pass.sequencesOrNull();
        Quantizers quantizers = pass.quantizers();
        boolean calibrating = pass.isCalibrating();
        boolean saving = pass.isSaving();
        Scope kept = pass.memory().keptScope();
        // Inside another recomputed layer the memory is in use already: this call's part lies on top of it.
        Scope below = kept == pass.scope() ? Inside.recomputed(pass.stream()) : kept;
        Scope again = below.open();
        long repeated = pass.saved().repeat(context);
        try {
            pass.memory().keepIn(again);
            pass.draws().restoreSite(context.site);
            pass.restoreSequences(context.sequences);
            pass.recipe().restore(context.quantizers, context.calibrating);
            pass.saving(true);
            // Writes the output to its former memory, unless its gradient lies there.
            inner.forward(x, Checks.overlaps(dy, y) ? again.like(y) : y, pass);
            inner.backward(dy, dx, pass);
        } finally {
            pass.saved().endRepeat(repeated);
            pass.saving(saving);
            pass.restoreSequences(sequences);
            pass.recipe().restore(quantizers, calibrating);
            pass.draws().restoreSite(site);
            pass.memory().keepIn(kept);
            again.close();
        }
    }

    @Override
    public long outputColumns(long inputColumns) {
        return inner.outputColumns(inputColumns);
    }

    @Override
    public boolean requiresGradient() {
        return inner.requiresGradient();
    }

    @Override
    public boolean worksInPlace() {
        return inner.worksInPlace();
    }

    @Override
    public void checkInput(Tensor x) {
        Checks.given("x", x);
        inner.checkInput(x);
    }

    @Override
    public List<Layer> inside() {
        return List.of(inner);
    }

    @Override
    protected String explanation(Tensor x, Pass pass) {
        return name() + ": recomputed in backward\n"
                + inner.explainInside(x, pass).indent(2).stripTrailing();
    }
}
