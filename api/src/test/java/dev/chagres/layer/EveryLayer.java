package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import java.util.stream.LongStream;
import org.jspecify.annotations.Nullable;

/** One layer of every class, and a model of it alone: the same weights and inputs each time. */
public final class EveryLayer implements AutoCloseable {
    public static final int HIDDEN = 32;
    private static final int[] LENGTHS = {7, 1, 0, 11};
    public static final int TOKENS = 19;
    private static final int MEMORY_TOKENS = 9;
    public static final int MEMORY_HIDDEN = 24;
    /** Normal numbers of each key. */
    private static final Map<Long, double[]> DRAWN = new ConcurrentHashMap<>();

    /** What a step gives: output, gradient of the input, of the memory, of the parameters. */
    public record Step(float[] y, float[] dx, float[] dmemory, List<float[]> gradients) {}

    public final Device device;
    public final Parameters parameters;
    public final Layer layer;
    public final SharedInput memory = new SharedInput("memory");
    public final Scope inputs;
    public final Sequences sequences;
    public final Tensor x;
    public final Tensor memoryInput;
    private final DType dtype;
    private final @Nullable Quantizers quantizers;
    private final ContextParallel context;

    public EveryLayer(
            Device device,
            LayerKind kind,
            DType dtype,
            @Nullable Recipe recipe,
            WeightStorage storage,
            UnaryOperator<Layer> wrapper,
            Consumer<ModelPlan> change) {
        this(device, kind, dtype, recipe, storage, wrapper, change, new ModelPlan());
    }

    public EveryLayer(
            Device device,
            LayerKind kind,
            DType dtype,
            @Nullable Recipe recipe,
            WeightStorage storage,
            UnaryOperator<Layer> wrapper,
            Consumer<ModelPlan> change,
            ModelPlan plan) {
        this.device = device;
        this.dtype = dtype;
        inputs = device.openScope();
        context = plan.contextParallel();
        layer = wrapper.apply(kind.maker().make(plan.group("layer"), memory, inputs));
        plan.declare("unused", Initializer.zeros(), 1);
        change.accept(plan);
        parameters = Parameters.allocate(device, plan, dtype, 1, storage);
        for (Parameter parameter : parameters.all()) {
            boolean matrix = parameter.shape().rank() == 2;
            float size = matrix ? (float) (1 / Math.sqrt(parameter.wholeShape().size(1))) : 0.2f;
            float middle = !matrix && parameter.name().endsWith("weight") ? 1 : 0;
            double[] drawn = normals(CounterRandom.key(2, parameter.name()), (int)
                    parameter.wholeShape().count());
            fill(parameter.weight(), parameter.split(), drawn, middle, size);
        }
        quantizers = recipe == null ? null : Quantizers.allocate(parameters, recipe);
        sequences = Sequences.packed(inputs, LENGTHS).withKeys(Sequences.packed(inputs, 2, 3, 0, 4));
        x = drawn(inputs, 3, TOKENS, HIDDEN);
        memoryInput = drawn(inputs, 4, MEMORY_TOKENS, MEMORY_HIDDEN);
    }

    private void fill(Tensor tensor, long key) {
        fill(tensor, null, normals(key, (int) tensor.count()), 0, 1);
    }

    private void fill(Tensor tensor, @Nullable ParameterSplit split, double[] drawn, float middle, float size) {
        float[] values = new float[(int) tensor.count()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) (middle + size * drawn[split == null ? i : (int) split.element(i)]);
        }
        tensor.set(device.stream(), values);
    }

    /** Returns at least {@code count} numbers. Thousands of layers have the same. */
    private static double[] normals(long key, int count) {
        return DRAWN.compute(
                key,
                (_, known) -> known != null && known.length >= count
                        ? known
                        : LongStream.range(0, count)
                                .mapToDouble(i -> CounterRandom.normal(key, i))
                                .toArray());
    }

    /** Returns this rank's part of what belongs to all tokens. */
    private Tensor drawn(Scope scope, long key, long tokens, long columns) {
        Tensor all = scope.tensor(dtype, tokens, columns);
        fill(all, key);
        return context.own(all, scope);
    }

    /** Begins a micro-batch over the usual sequences, in which draws repeat. */
    public Pass begin(Pass pass) {
        pass.begin(sequences);
        if (quantizers != null) {
            pass.autocast(quantizers);
        }
        pass.seed(9, 8, 7);
        memory.forward(memoryInput, pass);
        return pass;
    }

    /** Forward, and backward where the pass saves, over the usual input. */
    public Step step(Pass pass) {
        Tensor y = layer.forward(x, begin(pass));
        float[] output = read(y);
        if (!pass.isSaving()) {
            return new Step(output, new float[0], new float[0], List.of());
        }
        Tensor dy = drawn(pass.scope(), 5, TOKENS, y.size(1));
        Tensor dx = layer.backward(dy, pass);
        Tensor dmemory = memory.backward(pass);
        return new Step(output, read(dx), read(dmemory), gradients());
    }

    public List<float[]> gradients() {
        if (!context.isSplit()) { // else the term of this rank's tokens
            parameters.completeGradients();
        }
        return parameters.all().stream()
                .map(parameter -> parameter.isFrozen() ? new float[0] : read(parameter.gradient()))
                .toList();
    }

    public float[] read(Tensor tensor) {
        return tensor.toFloats(device.stream());
    }

    public Tensor gradient(Tensor y) {
        Tensor dy = inputs.tensor(dtype, y.size(0), y.size(1));
        fill(dy, 5);
        return dy;
    }

    @Override
    public void close() {
        inputs.close();
        parameters.close();
    }
}
