package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/**
 * The attributes of a descriptor, before it is made: it can be made as often as there are devices.
 *
 * <p>Threading: immutable once its graph is built.
 */
final class Description {
    /** The type of the descriptor. */
    final int type;

    private final List<Setting> settings = new ArrayList<>();
    /** What was set, for {@link #toString}. */
    private final StringBuilder text = new StringBuilder();

    /** Sets one attribute; tensors were described before. */
    private interface Setting {
        void apply(BackendDescriptor descriptor, Map<GraphTensor, BackendDescriptor> tensors);
    }

    Description(int type) {
        this.type = type;
    }

    private Description with(int name, Object value, Setting setting) {
        text.append(' ').append(name).append('=').append(value);
        settings.add(setting);
        return this;
    }

    Description integer(int name, int attributeType, int value) {
        return with(name, value, (descriptor, tensors) -> descriptor.integer(name, attributeType, value));
    }

    Description integers(int name, int... values) {
        return with(
                name,
                Arrays.toString(values),
                (descriptor, tensors) -> descriptor.integers(name, Cudnn.CUDNN_TYPE_INT32(), values));
    }

    Description type(int name, DataType value) {
        return integer(name, Cudnn.CUDNN_TYPE_DATA_TYPE(), value.code());
    }

    Description longs(int name, long... values) {
        return with(
                name,
                Arrays.toString(values),
                (descriptor, tensors) -> descriptor.longs(name, Cudnn.CUDNN_TYPE_INT64(), values));
    }

    Description number(int name, double value) {
        return with(name, value, (descriptor, tensors) -> descriptor.number(name, value));
    }

    Description single(int name, float value) {
        return with(name, value, (descriptor, tensors) -> descriptor.single(name, value));
    }

    Description truth(int name, boolean value) {
        return with(name, value, (descriptor, tensors) -> descriptor.truth(name, value));
    }

    Description tensors(int name, List<GraphTensor> values) {
        return with(
                name,
                values.stream().map(GraphTensor::uid).toList(),
                (descriptor, tensors) -> descriptor.descriptors(
                        name, values.stream().map(tensors::get).toList()));
    }

    Description tensor(int name, GraphTensor value) {
        return tensors(name, List.of(value));
    }

    /** Makes the descriptor and completes it. */
    BackendDescriptor make(String what, Map<GraphTensor, BackendDescriptor> tensors) {
        return make(what, tensors, descriptor -> {});
    }

    /** The same for a descriptor of which an attribute names another descriptor. */
    BackendDescriptor make(
            String what, Map<GraphTensor, BackendDescriptor> tensors, int name, BackendDescriptor inner) {
        return make(what, tensors, descriptor -> descriptor.descriptors(name, List.of(inner)));
    }

    private BackendDescriptor make(
            String what, Map<GraphTensor, BackendDescriptor> tensors, Consumer<BackendDescriptor> first) {
        BackendDescriptor made = BackendDescriptor.make(type, what);
        try {
            first.accept(made);
            settings.forEach(setting -> setting.apply(made, tensors));
            return made.complete();
        } catch (RuntimeException failure) {
            made.close();
            throw failure;
        }
    }

    /** The same for a descriptor that names no tensor. */
    BackendDescriptor make(String what) {
        return make(what, Collections.emptyMap());
    }

    /** Returns the type and what was set, by the numbers of {@code cudnn_graph.h}. */
    @Override
    public String toString() {
        return type + ":" + text;
    }
}
