package dev.chagres;

import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Workspace;
import org.jspecify.annotations.Nullable;

/**
 * Reads for {@link Inside}, which makes the one object, what classes of this package keep.
 *
 * <p>Threading: the device's thread.
 */
final class InsideFields extends Inside.Fields {
    InsideFields() {}

    @Override
    protected DeviceState state(Device device) {
        return device.state();
    }

    @Override
    protected DeviceState state(Tensor tensor) {
        return tensor.device();
    }

    @Override
    protected Workspace workspace(Stream stream) {
        return stream.workspace();
    }

    @Override
    protected Scope scratch(Stream stream) {
        return stream.scratch();
    }

    @Override
    protected Scope recomputed(Stream stream) {
        return stream.recomputed();
    }

    @Override
    protected @Nullable Capture capture(Stream stream) {
        return stream.capture();
    }

    @Override
    protected long address(Tensor tensor) {
        return tensor.knownAddress();
    }

    @Override
    protected int issue(Tensor tensor) {
        return tensor.issueNumber();
    }

    @Override
    protected @Nullable Tensor base(Tensor tensor) {
        return tensor.base();
    }

    @Override
    protected void fix(Tensor tensor) {
        tensor.fix();
    }

    @Override
    protected boolean isFixed(Tensor tensor) {
        return tensor.isFixed();
    }

    @Override
    protected void requireGradient(Tensor tensor, boolean required) {
        tensor.requireGradient(required);
    }
}
