package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceMemory;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.SharedMemory;
import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/**
 * The weights of one model in one memory, for several threads that evaluate it on the same GPU: each thread opens the device anew, makes the
 * model of a plan of its own, and borrows the weights. Further threads take no further memory for weights.
 *
 * {@snippet file="dev/chagres/pass/PassPoolTest.java" region="sharedWeights"}
 *
 * <p>From {@link #of} until this and all borrowed parameters are closed, nobody may write to the weights: steps of optimizers, loading, and
 * writes by methods and kernels are refused. Borrowed parameters are frozen; gradients of inputs can be computed, none of weights.
 *
 * <p>The owner, this, and what was borrowed may be closed in any order: the memory is freed with the last of them.
 *
 * <p>Threading: thread-safe, but for {@link #of}, which needs the device's thread.
 */
public final class SharedWeights implements AutoCloseable {
    /** One weight in the vector of its type. */
    private record Place(DType dtype, Shape shape, long offset) {}

    /** All weights of one type. */
    private record Vector(long address, long count, long byteSize) {
        private long reservedBytes() {
            return (byteSize + DeviceMemory.ALIGNMENT - 1) & -DeviceMemory.ALIGNMENT;
        }
    }

    private final int deviceIndex;
    private final DType dtype;
    private final SharedMemory memory;
    private final Map<DType, Vector> vectors = new EnumMap<>(DType.class);
    private final Map<String, Place> places = new LinkedHashMap<>();

    private SharedWeights(Parameters owner, SharedMemory memory) {
        deviceIndex = owner.scope().device().index();
        dtype = owner.dtype();
        this.memory = memory;
        for (Parameter parameter : owner.all()) {
            Tensor weight = parameter.unreadWeight();
            Tensor vector = owner.vectors.weights(weight.dtype());
            vectors.put(weight.dtype(), new Vector(vector.address(), vector.count(), vector.byteSize()));
            long offset = (weight.address() - vector.address()) / weight.dtype().byteSize();
            places.put(parameter.name(), new Place(weight.dtype(), weight.shape(), offset));
        }
    }

    /**
     * Offers the weights of {@code owner}, once everything enqueued on its device is done.
     *
     * @throws IllegalArgumentException when the weights are split or sharded among ranks, kept in eight bits, or borrowed themselves
     * @throws IllegalStateException when they are shared already, or the parameters are closed; while a stream of the device captures
     */
    public static SharedWeights of(Parameters owner) {
        Checks.given("owner", owner).ensureOpen();
        boolean isWhole =
                owner.access().shard() == null && !owner.tensorParallel().isSplit();
        boolean isTyped = owner.all().stream().allMatch(p -> p.storage() == WeightStorage.MODEL_TYPE);
        if (!isWhole || !isTyped || owner.vectors.isBorrowed()) {
            throw new IllegalArgumentException(
                    "owner: expected whole weights in the model's type, in memory of their own, got "
                            + (owner.vectors.isBorrowed()
                                    ? "borrowed ones"
                                    : isWhole ? "some that are kept in eight bits" : "a rank's part of them"));
        }
        owner.ensureUnshared("of");
        owner.scope().device().synchronize();
        SharedMemory memory = new SharedMemory(owner.scope().device().index());
        SharedWeights shared = new SharedWeights(owner, memory);
        owner.vectors.share(memory);
        return shared;
    }

    /** Returns CUDA's number of the device that has the weights. */
    public int deviceIndex() {
        return deviceIndex;
    }

    /** Returns the bytes of the weights, once for all who read them. */
    public long byteSize() {
        return vectors.values().stream().mapToLong(Vector::byteSize).sum();
    }

    /** Returns how many borrow the weights now. */
    public int borrowers() {
        return memory.borrowers();
    }

    /**
     * Gives the parameters of {@code plan} the shared weights of the same names, and freezes them. The caller closes the result; until
     * then the memory stays.
     *
     * @param device opened by the calling thread, with number {@link #deviceIndex}
     * @param plan of the model, or of a part of it
     * @throws IllegalArgumentException when the device is another, the plan is empty or split among ranks, or a parameter is not among the
     *     shared ones, or has another shape or type there
     * @throws IllegalStateException when the weights are offered no more, or the plan has memory already
     */
    public Parameters lend(Device device, ModelPlan plan) {
        Checks.given("device", device);
        if (device.index() != deviceIndex) {
            throw new IllegalArgumentException("device: expected number " + deviceIndex
                    + ", which has the weights, got " + device + "; call Device.open(" + deviceIndex + ")");
        }
        ensureFits(Checks.given("plan", plan));
        return ParameterAllocation.borrow(device, plan, dtype, opened -> views(device, opened));
    }

    private void ensureFits(ModelPlan plan) {
        for (List<Parameter> group : plan.groups().values()) {
            for (Parameter parameter : group) {
                Place place = places.get(parameter.name());
                DType own = parameter.ownType();
                DType wanted = own == null ? dtype : own;
                if (place == null || !place.shape.equals(parameter.shape()) || place.dtype != wanted) {
                    throw new IllegalArgumentException(
                            "plan: expected parameters of the model that shares its weights, got "
                                    + parameter + " of " + wanted
                                    + (place == null
                                            ? ", which it lacks"
                                            : ", which has " + place.shape + " of " + place.dtype + " there"));
                }
            }
        }
    }

    /** Opens the vectors on {@code device}, in a scope each. The first one is closed last, and says that the borrower is gone. */
    private Function<Parameter, Tensor> views(Device device, List<AutoCloseable> opened) {
        Map<DType, Tensor> lent = new EnumMap<>(DType.class);
        Stream stream = device.stream();
        DeviceState state = Inside.state(device);
        memory.borrow();
        vectors.forEach((type, vector) -> {
            Runnable release = lent.isEmpty() ? () -> state.free(0, 0, memory::giveBack) : () -> {};
            Scope scope = Inside.openScope(
                    stream, new DeviceMemory(state, stream.handle(), vector.address, vector.reservedBytes(), release));
            opened.add(scope);
            Tensor whole = scope.tensor(type, vector.count);
            Inside.share(whole, memory);
            lent.put(type, whole);
        });
        Scope views = (Scope) opened.getFirst();
        return parameter -> {
            Place place = Checks.given(parameter.name(), places.get(parameter.name()));
            return views.view(Checks.given("weights", lent.get(place.dtype)), place.offset, place.shape);
        };
    }

    /** Lends no more. What was borrowed stays as it is; the weights may change again once that is closed. A second call does nothing. */
    @Override
    public void close() {
        memory.end();
    }

    @Override
    public String toString() {
        return "shared weights of " + places.size() + " parameters on device " + deviceIndex;
    }
}
