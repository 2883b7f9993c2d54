package dev.chagres.pass;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.pass.OffloadedInputs.Inputs;
import java.util.List;
import java.util.function.IntFunction;
import org.jspecify.annotations.Nullable;

/**
 * Layers one after another: {@code y = layers[n - 1](… layers[0](x))}.
 *
 * <p>While nothing is saved, the outputs between layers alternate between two buffers, or need none if all layers work in place. What backward reads
 * of them may lie in the host's memory until then: {@link ActivationOffload}.
 *
 * <p>Threading: the device's thread.
 */
public final class Sequential extends Layer {
    /** More than any model has: a larger number is a size that was passed by mistake, and its layers would fill the heap. */
    private static final int MOST = 65_536;

    private final Layer[] layers;
    private final boolean inPlace;
    private final ContextPool<Inputs> offloaded = new ContextPool<>(this, Inputs::new);

    /**
     * Puts layers one after another.
     *
     * @param name in errors and reports
     * @throws IllegalArgumentException when there are none
     */
    public Sequential(String name, Layer... layers) {
        super(name);
        if (Checks.givenAll("layers", layers).length == 0) {
            throw new IllegalArgumentException("layers: expected at least one, got none");
        }
        this.layers = layers.clone();
        boolean all = true;
        for (Layer layer : this.layers) {
            all &= layer.worksInPlace();
        }
        inPlace = all;
    }

    /**
     * Puts {@code count} layers one after another, each made by {@code maker} from its number.
     *
     * @throws IllegalArgumentException when there are none, or more than {@value #MOST}, or {@code maker} gives something else
     */
    public static Sequential of(int count, IntFunction<? extends Layer> maker) {
        Checks.given("maker", maker);
        Numbers.within("count", count, 1, MOST);
        Layer[] made = new Layer[count];
        for (int i = 0; i < count; i++) {
            made[i] = layer(maker.apply(i), i);
        }
        return new Sequential("layers", made);
    }

    /** Checks the object at run time, since a maker that was cast may return another type. */
    private static Layer layer(Object made, int number) {
        if (Checks.given("maker.apply(" + number + ")", made) instanceof Layer layer) {
            return layer;
        }
        throw new IllegalArgumentException("maker: expected a layer for " + number + ", got a "
                + made.getClass().getName());
    }

    /** Returns the layers, first to last. */
    public List<Layer> layers() {
        return List.of(layers);
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        int copied = OffloadedInputs.copied(layers.length, pass);
        Inputs inputs = copied == 0 ? null : OffloadedInputs.begin(offloaded, copied, x, mostColumns(x.size(1)), pass);
        Tensor from = x;
        Tensor spare = null;
        for (int i = 0; i < layers.length; i++) {
            Layer layer = layers[i];
            Tensor to;
            if (i == layers.length - 1 || (inPlace && !pass.isSaving())) {
                to = y;
            } else {
                long columns = layer.outputColumns(from.size(1));
                if (inputs != null && inputs.has(i + 1)) {
                    to = inputs.place(i + 1, columns);
                } else {
                    to = pass.isSaving() ? next(pass.kept(), from, columns) : reuse(spare, from, columns, pass);
                }
            }
            layer.forward(from, to, pass);
            if (inputs != null) {
                inputs.written(i + 1);
            }
            // The buffer just read is free for the output after the next; x is the caller's.
            spare = from == x ? null : from;
            from = to;
        }
        if (inputs != null) {
            inputs.end();
            offloaded.keep(inputs, pass);
        }
    }

    /** Returns the columns of the widest tensor between layers. */
    private long mostColumns(long inputColumns) {
        long columns = inputColumns;
        long most = 0;
        for (int i = 0; i < layers.length - 1; i++) {
            columns = layers[i].outputColumns(columns);
            most = Math.max(most, columns);
        }
        return most;
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Inputs inputs = offloaded.isNext(pass) ? offloaded.pop(pass) : null;
        if (inputs != null) {
            inputs.beginBackward();
        }
        Tensor from = dy;
        Tensor spare = null;
        for (int i = layers.length - 1; i >= 0; i--) {
            if (inputs != null) {
                inputs.fetch(i);
            }
            Layer layer = layers[i];
            Tensor to;
            if (i == 0 || inPlace) {
                to = dx;
            } else {
                to = reuse(spare, from, layer.inputColumnsOfLastCall(pass), pass);
            }
            layer.backward(from, to, pass);
            spare = from == dy ? null : from;
            from = to;
        }
        if (inputs != null) {
            inputs.end();
        }
    }

    private static Tensor next(Scope scope, Tensor like, long columns) {
        return scope.tensor(like.dtype(), like.size(0), columns);
    }

    private static Tensor reuse(@Nullable Tensor spare, Tensor like, long columns, Pass pass) {
        return spare != null && spare.size(1) == columns ? spare : next(pass.temporary(), like, columns);
    }

    @Override
    public long outputColumns(long inputColumns) {
        long columns = inputColumns;
        for (Layer layer : layers) {
            columns = layer.outputColumns(columns);
        }
        return columns;
    }

    @Override
    public boolean requiresGradient() {
        return anyRequiresGradient(layers);
    }

    @Override
    public boolean worksInPlace() {
        return inPlace;
    }

    @Override
    public void checkInput(Tensor x) {
        Checks.given("x", x);
        layers[0].checkInput(x);
    }

    @Override
    public String summary() {
        return new LayerSummary().with("layers", layers.length).toString();
    }

    @Override
    public List<Layer> inside() {
        return layers();
    }

    @Override
    protected String explanation(Tensor x, Pass pass) {
        StringBuilder text = new StringBuilder(name());
        int copied = OffloadedInputs.copied(layers.length, pass);
        if (copied > 0) {
            text.append(": the inputs of layers 1 to ")
                    .append(copied)
                    .append(" of ")
                    .append(layers.length - 1);
            text.append(
                    " lie in the host's memory between forward and backward; two streams copy them beside the layers");
        }
        for (Layer layer : layers) {
            text.append('\n').append(layer.explainInside(x, pass).indent(2).stripTrailing());
        }
        return text.toString();
    }
}
