package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.CudaException;
import dev.chagres.bindings.NcclException;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.FlightRecorder;
import dev.chagres.nccl.Reduction;
import dev.chagres.nccl.UniqueId;
import dev.chagres.ops.AttentionScores;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassProfile;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.pass.Sequential;
import dev.chagres.pipeline.PipelineSchedule;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.DataParallel;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionSizes;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.TensorLists;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.Constructor;
import java.lang.reflect.Executable;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.BiConsumer;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * Whatever public method gets null, no exception has the words of the virtual machine: a method may refuse another argument before it
 * looks at the one that is null, but where it is null that it refuses, it says which argument.
 */
@Tag("L0")
class MisuseOfNullsInCallsTest {
    /** Makes saved objects. */
    private static final class Nothing extends SavedContext {}

    private final Map<Class<?>, Object> values = new HashMap<>();
    private final List<Object> receivers = new ArrayList<>();
    private final List<AutoCloseable> opened = new ArrayList<>();
    private final Set<String> checked = new TreeSet<>();
    private final Set<String> wrong = new TreeSet<>();

    private NullSamples samples;
    private Device foreign;
    private Scope closedScope;
    private Scope foreignScope;
    private Tensor closedTensor;
    private Tensor foreignTensor;

    @TempDir
    private Path folder;

    private void open() {
        samples = new NullSamples();
        Device device = sample(Device.class);
        Scope scope = sample(Scope.class);
        closedScope = device.openScope();
        closedTensor = closedScope.tensor(DType.FLOAT32, 8, 8);
        closedScope.close();
        foreign = keep(Device.open(1));
        foreignScope = foreign.openScope();
        foreignTensor = foreignScope.tensor(DType.FLOAT32, 8, 8);
        Arena arena = Arena.ofConfined();
        opened.add(arena);
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(8, 8, Initializer.zeros(), plan.child("linear"));
        TransformerLayer layer = new TransformerLayer(
                TransformerLayerConfig.encoder(8, AttentionConfig.of(1, 8, AttentionMask.none())), plan.group("layer"));
        Parameters parameters = keep(Parameters.allocate(device, plan, DType.BFLOAT16, 1));
        Pass pass = keep(Pass.training(device));
        pass.begin();
        pass.sequences(Sequences.packed(pass.scope(), 8));
        value(Path.class, folder.resolve("file"));
        value(Duration.class, Duration.ofSeconds(1));
        value(MemorySegment.class, arena.allocate(256, 8));
        value(Map.class, Map.of());
        value(Tensor[].class, new Tensor[] {sample(Tensor.class)});
        value(Reduction.class, Reduction.SUM);
        value(AttentionProblem.class, AttentionProblem.of(QkvLayout.separate(QkvFormat.BSHD), 1));
        value(AttentionSizes.class, AttentionSizes.of(1, 8, 1, 8));
        value(CommunicatorConfig.class, CommunicatorConfig.standard());
        value(TensorSpec.class, new TensorSpec("name", DType.FLOAT32, Shape.of(64)));
        receive(new FlatParameter(DType.FLOAT32, 0, 0, 64, 64));
        value(Throwable.class, new IllegalStateException("thrown"));
        value(byte[].class, new byte[8]);
        value(long[].class, new long[] {0, 8});
        receive(pass, parameters, linear, layer, plan, new Sequential("all", linear, layer), new Recomputed(linear));
        receive(
                new CrossEntropy(8),
                new SavedTensor("kept"),
                new ContextPool<>("owner", Nothing::new),
                pass.sequences());
        receive(keep(new PassProfile(device)), keep(new AdamW(parameters, AdamW.Config.standard())));
        receive(new GradientNorm(parameters, 1), parameters.state(), ContextParallel.none());
        receive(keep(Quantizers.allocate(parameters, DelayedScaling.standard())), RotaryEmbedding.of(scope, 8, 8));
        receive(FlightRecorder.of(sample(Communicator.class)), UniqueId.create());
        receive(new AttentionScores(), new AttentionTensors(), PipelineSchedule.of(2, 1, 2), Ranks.local(1));
        receive(MeshShape.ofOne().with(MeshDimension.SHARD, 2), keep(HostBuffer.pageable(device, 64)));
        DataParallel strategy = keep(DataParallel.of(sample(Parameters.class), sample(Communicator.class)));
        Mesh mesh = keep(Mesh.of(sample(Communicator.class), MeshShape.ofOne()));
        receive(strategy, mesh, keep(TensorLists.of(new Tensor[] {sample(Tensor.class)})));
        receive(TensorSource.of(value(TensorSpec.class), value(MemorySegment.class)), device.openEvent());
        receivers.addAll(samples.all());
    }

    private <T> T sample(Class<T> type) {
        return type.cast(samples.of(type));
    }

    private <T> T value(Class<T> type) {
        return type.cast(values.get(type));
    }

    private void value(Class<?> type, Object value) {
        values.put(type, value);
    }

    private void receive(Object... objects) {
        for (Object one : objects) {
            receivers.add(one);
            values.put(one.getClass(), one);
        }
    }

    private <T extends AutoCloseable> T keep(T one) {
        opened.add(one);
        return one;
    }

    private void close() throws Exception {
        for (AutoCloseable one : opened.reversed()) {
            one.close();
        }
        samples.close();
        opened.clear();
        receivers.clear();
        values.clear();
    }

    @Test
    void nullIsNotToldInTheWordsOfTheVirtualMachine() throws Exception {
        callAll(this::checkNulls);
        assertEquals(Set.of(), wrong);
        assertTrue(checked.size() > 400, () -> checked.size() + " arguments found: " + checked);
        Set<String> some = new TreeSet<>(List.of(
                "HostBuffer.pinned(device)",
                "Shape.of(sizes)",
                "TensorSpec(shape)",
                "TensorSource.of(spec)",
                "SafetensorsFile.open(file)",
                "QkvLayout.separate(format)",
                "FlatParameter.holds(parameter)",
                "SavedTensor.set(newTensor)",
                "ContextPool.push(pass)",
                "Layer.explain(pass)",
                "FusedAttention.refusal(sizes)",
                "Attention.backward(tensors)"));
        some.removeAll(checked);
        assertEquals(Set.of(), some, "not called");
    }

    /** Numbers at the end of their range, closed objects and those of another device: a documented type that names what it expected. */
    @Test
    void extremesAreRefusedByName() throws Exception {
        callAll(this::checkExtremes);
        assertEquals("", String.join("\n", wrong));
        assertTrue(checked.size() > 1000, () -> checked.size() + " arguments found: " + checked);
    }

    /** Each type and each receiver with objects of its own, since a call may end those it was given. */
    private void callAll(BiConsumer<Executable, @Nullable Object> check) throws Exception {
        DevicesNeeded.assume(2);
        for (Class<?> type : MisuseOfNullsTest.publicTypes(Exports.packages())) {
            List<Executable> all = new ArrayList<>();
            if (!Modifier.isAbstract(type.getModifiers())) {
                all.addAll(List.of(type.getConstructors()));
            }
            methods(type)
                    .filter(method -> Modifier.isStatic(method.getModifiers()))
                    .forEach(all::add);
            if (!all.isEmpty()) {
                open();
                all.forEach(executable -> check.accept(executable, null));
                close();
            }
        }
        open();
        int count = receivers.size();
        close();
        for (int i = 0; i < count; i++) {
            open();
            Object receiver = receivers.get(i);
            methods(receiver.getClass())
                    .filter(method -> !Modifier.isStatic(method.getModifiers()))
                    .forEach(method -> check.accept(method, receiver));
            close();
        }
    }

    /** Those that a user can call, in an order that is the same each time. */
    private static Stream<Method> methods(Class<?> type) {
        return Stream.of(type.getMethods())
                .filter(method -> method.getDeclaringClass().getName().startsWith("dev.chagres."))
                .filter(method -> Modifier.isPublic(method.getDeclaringClass().getModifiers()) && !method.isBridge())
                .filter(method -> !Set.of("equals", "valueOf").contains(method.getName()))
                .sorted(Comparator.comparing(Method::toGenericString));
    }

    private void checkNulls(Executable executable, @Nullable Object receiver) {
        Class<?>[] types = executable.getParameterTypes();
        for (int i = 0; i < types.length; i++) {
            var parameter = executable.getParameters()[i];
            @Nullable
            Object[] arguments = Arrays.stream(types).map(this::argument).toArray();
            boolean known = Arrays.stream(arguments).noneMatch(one -> one == null);
            if (!known || types[i].isPrimitive() || parameter.getAnnotatedType().isAnnotationPresent(Nullable.class)) {
                continue;
            }
            arguments[i] = null;
            String what = executable.getDeclaringClass().getSimpleName()
                    + (executable instanceof Method ? "." + executable.getName() : "") + "(" + parameter.getName()
                    + ")";
            checked.add(what);
            Throwable thrown = thrown(executable, receiver, arguments);
            boolean told = !(thrown instanceof NullPointerException)
                    || String.valueOf(thrown.getMessage()).contains(": expected ");
            if (!told || thrown instanceof IndexOutOfBoundsException || thrown instanceof ClassCastException) {
                wrong.add(what + ": " + thrown);
            }
        }
    }

    private void checkExtremes(Executable executable, @Nullable Object receiver) {
        Class<?>[] types = executable.getParameterTypes();
        for (int i = 0; i < types.length; i++) {
            var parameter = executable.getParameters()[i];
            for (Object extreme : extremes(types[i])) {
                @Nullable
                Object[] arguments = Arrays.stream(types).map(this::argument).toArray();
                arguments[i] = extreme;
                if (Arrays.stream(arguments).anyMatch(one -> one == null) || waits(executable)) {
                    continue;
                }
                String what = executable.getDeclaringClass().getSimpleName()
                        + (executable instanceof Method ? "." + executable.getName() : "") + "(" + parameter.getName()
                        + " = " + extreme + ")";
                checked.add(what);
                Throwable thrown = thrown(executable, receiver, arguments);
                String text = thrown == null ? "" : String.valueOf(thrown.getMessage());
                boolean documented = thrown == null
                        || thrown instanceof CudaException
                        || thrown instanceof NcclException
                        || thrown instanceof IllegalStateException
                        || thrown instanceof UnsupportedOperationException
                        || text.contains(" expected ");
                if (!documented || text.equals("null")) {
                    wrong.add(what + ": " + thrown);
                }
            }
        }
    }

    /** For other ranks, as many as it is told of. */
    private static boolean waits(Executable executable) {
        return executable.getDeclaringClass() == Communicator.class
                && executable.getName().equals("open");
    }

    private List<Object> extremes(Class<?> type) {
        return switch (type.getSimpleName()) {
            case "int" -> List.of(Integer.MIN_VALUE, -1, 0, Integer.MAX_VALUE);
            case "long" -> List.of(Long.MIN_VALUE, -1L, 0L, 1L << 62, Long.MAX_VALUE);
            case "float" -> List.of(Float.NaN, Float.POSITIVE_INFINITY, -Float.MAX_VALUE, -1f);
            case "double" -> List.of(Double.NaN, Double.NEGATIVE_INFINITY, Double.MAX_VALUE, -1.0);
            case "int[]" -> List.of(new int[0], new int[] {-1}, new int[] {Integer.MAX_VALUE, Integer.MAX_VALUE});
            case "long[]" ->
                List.of(new long[0], new long[] {Long.MIN_VALUE}, new long[] {Long.MAX_VALUE, Long.MAX_VALUE});
            case "float[]" -> List.of(new float[0], new float[] {Float.NaN});
            case "byte[]" -> List.of(new byte[0]);
            case "String" -> List.of("", "a/b\n\u001b[2J");
            case "Shape" -> List.of(Shape.of(0), Shape.of(Long.MAX_VALUE), Shape.of(1L << 31, 1L << 31));
            case "Duration" -> List.of(Duration.ZERO, Duration.ofSeconds(-1));
            case "Tensor" -> List.of(closedTensor, foreignTensor);
            case "Scope" -> List.of(closedScope, foreignScope);
            case "Stream" -> List.of(foreign.stream());
            default -> List.of();
        };
    }

    private @Nullable Throwable thrown(Executable executable, @Nullable Object receiver, Object... arguments) {
        try {
            Object result = executable instanceof Constructor<?> constructor
                    ? constructor.newInstance(arguments)
                    : ((Method) executable).invoke(receiver, arguments);
            if (result instanceof AutoCloseable one && result != receiver && !values.containsValue(result)) {
                opened.add(one);
            }
            return null;
        } catch (InvocationTargetException thrown) {
            return thrown.getCause();
        } catch (ReflectiveOperationException impossible) {
            throw new AssertionError(executable.toString(), impossible);
        }
    }

    private @Nullable Object argument(Class<?> type) {
        Object known = values.containsKey(type) ? values.get(type) : samples.of(type);
        return known != null || !type.isEnum() ? known : type.getEnumConstants()[0];
    }
}
