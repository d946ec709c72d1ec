// Weight gradients put off: while a Deferred is active on a thread, the linear operator's backward
// computes the gradient of its input only and leaves the product for the weight here, to be run
// when a schedule says so (ZB-H1, arXiv:2401.10241).
#pragma once
#include <ATen/ATen.h>

#include <functional>
#include <utility>
#include <vector>

namespace contexture::parallel {

class Deferred {
 public:
  struct Product {
    at::Tensor weight;                    // the autograd leaf
    std::function<at::Tensor()> compute;  // its gradient
  };
  void add(Product product) { products_.push_back(std::move(product)); }
  std::vector<Product> take() { return std::exchange(products_, {}); }
  bool empty() const { return products_.empty(); }

  // The one that is active on this thread, or null.
  static Deferred* active();

  class Scope {  // activates one (or none) for a scope
   public:
    explicit Scope(Deferred* deferred);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Deferred* before_;
  };

 private:
  std::vector<Product> products_;
};

}  // namespace contexture::parallel
