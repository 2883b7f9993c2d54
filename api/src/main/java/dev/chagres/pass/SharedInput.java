package dev.chagres.pass;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.ops.Elementwise;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A tensor with several readers, such as an encoder's output or the trunk of two heads: its gradient is the sum of the gradients from the
 * readers' backward calls.
 *
 * {@snippet file="dev/chagres/TrainingExamplesTest.java" region="fanOut"}
 *
 * <p>Threading: the device's thread.
 */
public final class SharedInput implements Named {
    /** The state of one forward call until its backward call. */
    private static final class Fan extends SavedContext {
        private final SavedTensor tensor = new SavedTensor("the tensor with several readers");
        private final SavedTensor gradient = new SavedTensor("the gradient of the tensor with several readers");
        private @Nullable Pass pass;
        private long call;
        private boolean written;
    }

    /** The tensor of the last forward call in one pass, also of a pass that does not save. */
    private static final class Latest {
        private final SavedTensor tensor = new SavedTensor("the tensor with several readers");
        private final Pass pass;
        private long call;
        /** The pass's number when it was given the tensor. */
        private long microBatch;

        private Latest(Pass pass) {
            this.pass = pass;
        }
    }

    private final String name;
    private final ContextPool<Fan> fans = new ContextPool<>(this, Fan::new);
    /** Forward calls of all passes whose backward call has not been made. */
    private final List<Fan> open = new ArrayList<>();

    private final List<Latest> latest = new ArrayList<>();
    /** Forward calls so far. */
    private long calls;

    /**
     * Makes a fan-out, which is used in every micro-batch.
     *
     * @param name in errors
     */
    public SharedInput(String name) {
        this.name = Checks.given("name", name);
    }

    @Override
    public String name() {
        return name;
    }

    /** Sets {@code x} as the tensor that the readers read from now on, and returns it. */
    public Tensor forward(Tensor x, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Checks.floats(pass.stream(), "x", x);
        Latest last = keptFor(pass);
        if (last == null) {
            latest.removeIf(other -> !other.pass.isBegun());
            last = new Latest(pass);
            latest.add(last);
        }
        last.tensor.set(x);
        last.call = ++calls;
        last.microBatch = pass.microBatch();
        if (!pass.isSaving()) {
            return x;
        }
        Tensor gradient = pass.kept().like(x);
        dropStale(pass);
        Fan fan = fans.pushAlways(pass);
        fan.tensor.set(x);
        fan.gradient.set(gradient);
        fan.pass = pass;
        fan.call = calls;
        fan.written = false;
        // The newest is last, also if the object is reused.
        open.remove(fan);
        open.add(fan);
        return x;
    }

    /**
     * Returns the tensor of the last {@link #forward} call in this pass; layers that read it besides their input call this.
     *
     * @throws IllegalStateException when {@link #forward} was not called
     */
    public Tensor tensor(Pass pass) {
        if (Checks.given("pass", pass).isSaving()) {
            return of(pass).tensor.get();
        }
        Latest last = latestOf(pass);
        return last == null || last.tensor.isEmpty() ? of(pass).tensor.get() : last.tensor.get();
    }

    /** Returns the tensor as {@link #tensor} does, but null where {@link #forward} was not called. */
    public @Nullable Tensor latest(Pass pass) {
        if (Checks.given("pass", pass).isSaving()) {
            Fan fan = find(pass);
            return fan == null ? null : fan.tensor.get();
        }
        Latest last = latestOf(pass);
        return last == null || last.tensor.isEmpty() ? null : last.tensor.get();
    }

    /** Returns the last forward call in this micro-batch of the pass, or null. */
    private @Nullable Latest latestOf(Pass pass) {
        Latest last = keptFor(pass);
        if (last == null || last.microBatch == pass.microBatch()) {
            return last;
        }
        if (!last.tensor.isEmpty()) {
            var _ = last.tensor.get(); // throws where its memory is lost, too
        }
        return null;
    }

    private @Nullable Latest keptFor(Pass pass) {
        for (int i = 0; i < latest.size(); i++) {
            if (latest.get(i).pass == pass) {
                return latest.get(i);
            }
        }
        return null;
    }

    /**
     * Enqueues {@code reader}'s backward call and adds its gradient of the input here.
     *
     * @param dy gradient of the reader's output
     * @throws IllegalStateException when the last forward call of the pass was another layer's, or {@link #forward} was not
     *     called
     */
    public void backward(Layer reader, Tensor dy, Pass pass) {
        Checks.given("reader", reader);
        Fan fan = of(pass);
        if (fan.written) {
            add(reader.backward(dy, pass), pass);
        } else {
            reader.backward(dy, fan.gradient.get(), pass);
            fan.written = fan.tensor.get().requiresGradient();
        }
    }

    /**
     * Adds {@code gradient}, which a reader has computed and which has the tensor's shape and type.
     *
     * @throws IllegalArgumentException when shape, type or device do not fit
     * @throws IllegalStateException when {@link #forward} was not called
     */
    public void add(Tensor gradient, Pass pass) {
        Fan fan = of(pass);
        Tensor sum = fan.gradient.get();
        Checks.like(pass.stream(), "gradient", gradient, sum);
        if (fan.written) {
            Elementwise.add(gradient, sum, sum, pass.stream());
        } else {
            sum.copyFrom(pass.stream(), gradient);
        }
        fan.written = true;
    }

    /**
     * Returns the gradient, once every reader's backward call was made.
     *
     * @return the sum of the readers' gradients; zeros when none gave one
     * @throws IllegalStateException when a reader's backward call is missing: it is named
     */
    public Tensor backward(Pass pass) {
        Fan fan = fans.pop(pass);
        open.remove(fan);
        fan.pass = null;
        Latest last = latestOf(pass);
        if (last != null && last.call == fan.call) {
            // The call before it, if any, is now the last one.
            last.tensor.clear();
        }
        Tensor sum = fan.gradient.get();
        if (!fan.written) {
            sum.zero(pass.stream());
        }
        return sum;
    }

    /** Drops forward calls of earlier micro-batches whose backward call was never made. */
    private void dropStale(Pass pass) {
        for (int i = open.size() - 1; i >= 0; i--) {
            if (open.get(i).pass == pass && !pass.saved().holds(open.get(i))) {
                open.remove(i);
            }
        }
    }

    private Fan of(Pass pass) {
        Fan fan = find(pass);
        if (fan == null) {
            throw new IllegalStateException(
                    name + ": this pass holds no tensor with several readers; call forward(x, pass) first");
        }
        return fan;
    }

    private @Nullable Fan find(Pass pass) {
        for (int i = open.size() - 1; i >= 0; i--) {
            Fan fan = open.get(i);
            if (fan.pass == pass && pass.saved().holds(fan)) {
                return fan;
            }
        }
        return null;
    }

    @Override
    public String toString() {
        return LayerSummary.line(name, "SharedInput", "");
    }
}
