package dev.chagres;

import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.DeviceMemory;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Fields;
import dev.chagres.internal.memory.SharedMemory;
import dev.chagres.internal.memory.Workspace;
import org.jspecify.annotations.Nullable;

/**
 * Reads what classes of this package keep. {@code Inside} makes the one object.
 *
 * <p>Threading: the device's thread.
 */
final class InsideFields extends Fields {
    InsideFields() {}

    @Override
    public DeviceState stateOfDevice(Object device) {
        return ((Device) device).state();
    }

    @Override
    public DeviceState stateOfTensor(Object tensor) {
        return ((Tensor) tensor).device();
    }

    @Override
    public Workspace workspace(Object stream) {
        return ((Stream) stream).workspace();
    }

    @Override
    public Object openScope(Object stream, DeviceMemory memory) {
        Stream of = (Stream) stream;
        return of.device().keep(Scope.over(of, memory));
    }

    @Override
    public Object scratch(Object stream) {
        return ((Stream) stream).scratch();
    }

    @Override
    public Object recomputed(Object stream) {
        return ((Stream) stream).recomputed();
    }

    @Override
    public @Nullable Capture capture(Object stream) {
        return ((Stream) stream).capture();
    }

    @Override
    public long address(Object tensor) {
        return ((Tensor) tensor).knownAddress();
    }

    @Override
    public boolean holds(Object tensor, int issue) {
        return ((Tensor) tensor).holds(issue);
    }

    @Override
    public int writes(Object tensor) {
        return ((Tensor) tensor).writes();
    }

    @Override
    public long writtenAt(Object tensor) {
        return ((Tensor) tensor).writtenAt();
    }

    @Override
    public int issue(Object tensor) {
        return ((Tensor) tensor).issueNumber();
    }

    @Override
    public boolean isTakenBack(Object tensor, int issue) {
        return ((Tensor) tensor).isTakenBack(issue);
    }

    @Override
    public @Nullable Object base(Object tensor) {
        return ((Tensor) tensor).base();
    }

    @Override
    public void fix(Object tensor) {
        ((Tensor) tensor).fix();
    }

    @Override
    public boolean isFixed(Object tensor) {
        return ((Tensor) tensor).isFixed();
    }

    @Override
    public void requireGradient(Object tensor, boolean required) {
        ((Tensor) tensor).requireGradient(required);
    }

    @Override
    public void shareMemory(Object scope, SharedMemory memory) {
        ((Scope) scope).share(memory);
    }

    @Override
    public void share(Object tensor, SharedMemory memory) {
        ((Tensor) tensor).share(memory);
    }

    @Override
    public boolean isShared(Object tensor) {
        return ((Tensor) tensor).isShared();
    }
}
