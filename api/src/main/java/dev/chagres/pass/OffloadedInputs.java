package dev.chagres.pass;

import dev.chagres.DType;
import dev.chagres.Event;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Opened;
import dev.chagres.internal.memory.DeviceMemory;
import dev.chagres.internal.memory.PinnedMemory;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The copies of one pass between the device and the host's memory, for {@link ActivationOffload}.
 *
 * <p>Input i, from 1 on, lies in buffer {@code i mod 3}. Layer i reads it and writes input i + 1 into the next buffer, in forward and where backward
 * recomputes it; the third buffer is being emptied in forward, and filled with input i - 1 in backward.
 *
 * <p>Threading: the device's thread.
 */
final class OffloadedInputs implements PassState {
    static final int BUFFERS = 3;

    private final Pass pass;
    private final Stream down;
    private final Stream up;
    /** What the pass has enqueued before a copy. */
    private final Event begun;
    /** By buffer: its latest copy to the host is done. */
    private final Event[] emptied = new Event[BUFFERS];
    /** By buffer: its latest copy to the device is done. */
    private final Event[] filled = new Event[BUFFERS];

    /** Of the forward calls of a micro-batch, in their order. */
    private final List<Block> blocks = new ArrayList<>();

    private int used;
    /** Calls that have begun and not ended: more than 0 between calls after one has failed. */
    private int open;

    /** Page-locked memory, and all of it as a tensor. */
    private record Block(Scope scope, Tensor bytes) {}

    private OffloadedInputs(Pass pass) {
        this.pass = pass;
        try (Opened opened = new Opened()) {
            down = opened.add(pass.device().openStream());
            up = opened.add(pass.device().openStream());
            begun = opened.add(pass.device().openEvent());
            for (int i = 0; i < BUFFERS; i++) {
                emptied[i] = opened.add(pass.device().openEvent());
                filled[i] = opened.add(pass.device().openEvent());
            }
            opened.keep();
        }
    }

    /** Returns how many inputs are copied in a call of so many layers. */
    static int copied(int layers, Pass pass) {
        // What a recomputed layer saves is used at once.
        boolean applies = pass.isSaving() && pass.memory().keptScope() == pass.scope();
        return applies ? pass.offload().copied(layers) : 0;
    }

    /**
     * Begins a forward call.
     *
     * @param copied how many inputs, as {@link #copied} says
     * @param like the first layer's input
     * @param columns the most of an input
     * @throws CaptureException while the stream captures
     */
    static Inputs begin(ContextPool<Inputs> pool, int copied, Tensor like, long columns, Pass pass) {
        ensureNotCapturing("forward", pass);
        OffloadedInputs copies = pass.state(OffloadedInputs.class, OffloadedInputs::new);
        long host = copies.block(copied * like.size(0) * columns * like.dtype().byteSize());
        Inputs inputs = pool.take();
        inputs.set(copies, copied, host, like, columns);
        copies.open++;
        return inputs;
    }

    private static void ensureNotCapturing(String call, Pass pass) {
        if (Inside.capture(pass.stream()) != null) {
            throw new CaptureException(call
                    + ": expected a pass that is not captured, since inputs of layers are copied to the host's memory"
                    + " beside it; keep them on the device by pass.offload(ActivationOffload.none()), or enqueue"
                    + " steps one by one");
        }
    }

    /** Returns the address of so many bytes in the host's memory, until the pass is begun again. */
    private long block(long bytes) {
        if (used == blocks.size() || blocks.get(used).bytes.count() < bytes) {
            if (used < blocks.size()) {
                blocks.remove(used).scope.close(); // waits for the pass's stream, which waits for all copies
            }
            Stream stream = pass.stream();
            long size = Math.max(DeviceMemory.ALIGNMENT, bytes + DeviceMemory.ALIGNMENT - 1 & -DeviceMemory.ALIGNMENT);
            Scope scope = Inside.openScope(stream, PinnedMemory.allocate(Inside.state(stream), stream.handle(), size));
            blocks.add(used, new Block(scope, scope.tensor(DType.BYTE, bytes)));
        }
        return blocks.get(used++).bytes.address();
    }

    @Override
    public long hostBytes() {
        long bytes = 0;
        for (int i = 0; i < blocks.size(); i++) {
            bytes += blocks.get(i).scope.reservedBytes();
        }
        return bytes;
    }

    /** A call that has failed may have left copies of buffers whose memory others get now. */
    @Override
    public void restart() {
        used = 0;
        if (open > 0) {
            open = 0;
            await(down);
            await(up);
        }
    }

    private void await(Stream copies) {
        begun.record(copies);
        pass.stream().await(begun);
    }

    /** Waits for the copies. */
    @Override
    public void close() {
        if (!Inside.state(pass.stream()).isClosed()) {
            down.synchronize();
            up.synchronize();
        }
        blocks.forEach(block -> block.scope.close());
        blocks.clear();
        for (int i = 0; i < BUFFERS; i++) {
            emptied[i].close();
            filled[i].close();
        }
        begun.close();
        down.close();
        up.close();
    }

    /**
     * The inputs of one forward call of layers, until its backward call.
     *
     * <p>Threading: the device's thread.
     */
    static final class Inputs extends SavedContext {
        private final SavedTensor[] buffers = new SavedTensor[BUFFERS];
        private @Nullable OffloadedInputs copies;
        private int copied;
        private long bytes;
        private long host;

        Inputs() {
            for (int i = 0; i < BUFFERS; i++) {
                buffers[i] = new SavedTensor("a buffer of inputs");
            }
        }

        private void set(OffloadedInputs newCopies, int newCopied, long newHost, Tensor like, long columns) {
            copies = newCopies;
            copied = newCopied;
            bytes = like.size(0) * columns * like.dtype().byteSize();
            host = newHost;
            for (SavedTensor buffer : buffers) {
                buffer.set(newCopies.pass.kept().tensor(like.dtype(), like.size(0), columns));
            }
        }

        private OffloadedInputs copies() {
            return Checks.given("copies", copies);
        }

        /** Returns whether input {@code number} lies in a buffer. */
        boolean has(int number) {
            return number >= 1 && number <= copied + BUFFERS;
        }

        /** Returns memory for input {@code number}, one that is {@link #has there}, once what lay there was copied. */
        Tensor place(int number, long columns) {
            OffloadedInputs present = copies();
            int buffer = number % BUFFERS;
            if (number > BUFFERS) {
                present.pass.stream().await(present.emptied[buffer]);
            }
            Tensor whole = buffers[buffer].get();
            return present.pass.kept().view(whole, 0, whole.size(0), columns);
        }

        /** Input {@code number} was written: it is copied to the host, if it is to be. */
        void written(int number) {
            if (number < 1 || number > copied) {
                return;
            }
            OffloadedInputs present = copies();
            int buffer = number % BUFFERS;
            present.begun.record(present.pass.stream());
            present.down.await(present.begun);
            PinnedMemory.toHost(onHost(number), buffers[buffer].get().address(), bytes, present.down.handle());
            present.emptied[buffer].record(present.down);
        }

        private long onHost(int number) {
            return host + (number - 1) * bytes;
        }

        /** Before backward of layer {@code number}, from 0 on: its input is there, and the one before is fetched while it runs. */
        void fetch(int number) {
            OffloadedInputs present = copies();
            if (number >= 1 && number <= copied) {
                present.pass.stream().await(present.filled[number % BUFFERS]);
            }
            int next = number - 1;
            if (next >= 1 && next <= copied) {
                int buffer = next % BUFFERS;
                present.begun.record(present.pass.stream());
                present.up.await(present.begun);
                PinnedMemory.toDevice(buffers[buffer].get().address(), onHost(next), bytes, present.up.handle());
                present.filled[buffer].record(present.up);
            }
        }

        /** Begins the backward call. */
        void beginBackward() {
            OffloadedInputs present = copies();
            ensureNotCapturing("backward", present.pass);
            present.open++;
        }

        /** A call has enqueued all its work. */
        void end() {
            copies().open--;
        }
    }
}
