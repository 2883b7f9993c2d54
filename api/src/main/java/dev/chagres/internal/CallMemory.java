package dev.chagres.internal;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.memory.DeviceState;
import org.jspecify.annotations.Nullable;

/**
 * The memory that one call reads and writes. Memory that is written to may not overlap any other tensor of the call; of two tensors that are
 * written to, the error names that which was recorded later first.
 *
 * <p>Threading: the device's thread.
 */
public final class CallMemory {
    private static final DeviceState.Attachment<CallMemory> ATTACHMENT =
            new DeviceState.Attachment<>(device -> new CallMemory());

    /** More tensors than any call has, those for scores and scales of attention's backward included. */
    private static final int MOST = 40;

    private final @Nullable String[] arguments = new String[MOST];
    private final long[] begins = new long[MOST];
    private final long[] ends = new long[MOST];
    private final boolean[] writes = new boolean[MOST];
    private int count;

    /** Makes an object for the calls of one owner. */
    public CallMemory() {}

    /** Returns the device's object, for a call that begins. */
    public static CallMemory of(Stream stream) {
        CallMemory memory = Inside.state(stream).get(ATTACHMENT);
        memory.clear();
        return memory;
    }

    /** Starts anew for the next call. */
    public void clear() {
        count = 0;
    }

    /** Records that the call reads {@code tensor}, if there is one. */
    public CallMemory read(String argument, @Nullable Tensor tensor) {
        if (tensor != null) {
            read(argument, tensor, tensor.byteSize());
        }
        return this;
    }

    /** Records that the call reads the first {@code byteSize} bytes of {@code tensor}. */
    public void read(String argument, Tensor tensor, long byteSize) {
        if (byteSize > 0) {
            long begin = Inside.address(tensor);
            arguments[count] = argument;
            begins[count] = begin;
            ends[count] = begin + byteSize;
            writes[count] = false;
            count++;
        }
    }

    /** Records that the call reads {@code tensor}, and checks that it overlaps nothing that was recorded as written. */
    public void readApart(String argument, Tensor tensor) {
        long begin = Inside.address(tensor);
        long byteSize = tensor.byteSize();
        for (int i = 0; byteSize > 0 && i < count; i++) {
            if (writes[i] && begin < ends[i] && begins[i] < begin + byteSize) {
                throw new IllegalArgumentException(argument + ": expected memory of its own, got some of "
                        + arguments[i] + "'s, which is written to while it is read");
            }
        }
        read(argument, tensor, byteSize);
    }

    /** Records that the call writes {@code tensor}, if there is one, and checks that it may, and that it overlaps nothing else. */
    public CallMemory written(String argument, @Nullable Tensor tensor) {
        return written(argument, tensor, null, null, null);
    }

    /** The same of a tensor that may lie where one of these arguments begins. */
    public CallMemory written(
            String argument,
            @Nullable Tensor tensor,
            @Nullable String first,
            @Nullable String second,
            @Nullable String third) {
        if (tensor != null) {
            written(argument, tensor, tensor.byteSize(), first, second, third);
        }
        return this;
    }

    /** Records that the call writes the first {@code byteSize} bytes of {@code tensor}, and checks that they overlap nothing else. */
    public void written(String argument, Tensor tensor, long byteSize) {
        written(argument, tensor, byteSize, null, null, null);
    }

    private void written(
            String argument,
            Tensor tensor,
            long byteSize,
            @Nullable String first,
            @Nullable String second,
            @Nullable String third) {
        Checks.writable(argument, tensor);
        long begin = Inside.address(tensor);
        long end = begin + byteSize;
        for (int i = 0; byteSize > 0 && i < count; i++) {
            String other = arguments[i];
            boolean inPlace = begins[i] == begin
                    && end <= ends[i]
                    && other != null
                    && (other.equals(first) || other.equals(second) || other.equals(third));
            if (begin < ends[i] && begins[i] < end && !inPlace) {
                throw new IllegalArgumentException(argument + ": expected memory of its own, got some of " + other
                        + "'s; it is written to while that is read or written");
            }
        }
        read(argument, tensor, byteSize);
        if (byteSize > 0) {
            writes[count - 1] = true;
        }
    }
}
