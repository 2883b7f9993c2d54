package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;

/**
 * {@code y = first(x) + second(x)}, as one branch of a residual stream.
 *
 * <p>Threading: the device's thread.
 */
final class ParallelBranches extends NormedBranch {
    ParallelBranches(String name, NormedBranch first, NormedBranch second) {
        super(name, null, new Sum(name, first, second), null, null);
    }

    private static final class Sum extends Layer {
        /** What backward needs to know of the input. */
        private static final class Input extends SavedContext {
            private boolean learns;
        }

        private final Layer first;
        private final Layer second;
        private final ContextPool<Input> saved = new ContextPool<>(this, Input::new);

        private Sum(String name, Layer first, Layer second) {
            super(name);
            this.first = first;
            this.second = second;
        }

        @Override
        protected void run(Tensor x, Tensor y, Pass pass) {
            Tensor summand = pass.kept().like(y);
            first.forward(x, summand, pass);
            second.forward(x, y, pass);
            Elementwise.add(y, summand, y, pass.stream());
            Input input = saved.push(pass);
            if (input != null) {
                input.learns = x.requiresGradient();
            }
        }

        @Override
        protected void gradient(Tensor dy, Tensor dx, Pass pass) {
            boolean learns = saved.pop(pass).learns;
            Tensor summand = pass.temporary().like(dx);
            second.backward(dy, summand, pass);
            first.backward(dy, dx, pass);
            if (learns) {
                Elementwise.add(dx, summand, dx, pass.stream());
            }
        }

        @Override
        public boolean requiresGradient() {
            return anyRequiresGradient(first, second);
        }

        @Override
        protected void checkInput(Tensor x) {
            first.checkInput(x);
            second.checkInput(x);
        }

        @Override
        protected String explanation(Tensor x, Pass pass) {
            return first.explainInside(x, pass) + "\n" + second.explainInside(x, pass);
        }
    }
}
