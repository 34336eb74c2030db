// Search for readers who open the site from a folder. Browsers refuse Web Workers on file://, and
// the theme's search runs in one. Here the same script runs in a hidden frame that looks like a
// Worker to the page. On a server nothing changes.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inner = frame.contentDocument;
      inner.open();
      const scope = frame.contentWindow;
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.write("<!doctype html><title>search</title><body></body>");
      inner.close();
      const script = inner.createElement("script");
      script.src = new URL(url, location).href;
      this.scope = scope;
      this.ready = new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = () => reject(new Error(`cannot load ${url}`));
      });
      inner.body.append(script);
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
